package account

import (
	"context"
	"log/slog"
	"time"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Mailer takes mails to be sent later.
type Mailer interface {
	Enqueue(ctx context.Context, to, subject, text string) error
}

// The outbox's bounds: letters that wait, the time that one may take, and the time for all of them at the end.
const (
	maxLetters = 1000
	letterTime = 10 * time.Second
	lastTime   = 5 * time.Second
)

// letter is a mail. One without a receiver is not sent: it stands in the queue like any other, so that nobody learns from a
// request whether it led to a mail.
type letter struct{ to, subject, text string }

// Outbox hands mails to the mailer outside of the requests that they come from. What waits in it is lost when the process
// dies; people then ask again.
type Outbox struct {
	mailer  Mailer
	log     *slog.Logger
	letters chan letter
}

// NewOutbox makes one, which works while Run runs.
func NewOutbox(mailer Mailer, log *slog.Logger) *Outbox {
	return &Outbox{mailer: mailer, log: log, letters: make(chan letter, maxLetters)}
}

// Run hands over until ctx ends, and then what still waits.
func (o *Outbox) Run(ctx context.Context) {
	for {
		select {
		case l := <-o.letters:
			o.hand(context.WithoutCancel(ctx), letterTime, l)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTime)
			defer cancel()
			for {
				select {
				case l := <-o.letters:
					o.hand(last, letterTime, l)
				default:
					return
				}
			}
		}
	}
}

func (o *Outbox) hand(ctx context.Context, most time.Duration, l letter) {
	if l.to == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	if err := o.mailer.Enqueue(ctx, l.to, l.subject, l.text); err != nil {
		// Neither the receiver nor the text: one is personal, the other may hold a code.
		o.log.WarnContext(ctx, "mail not queued", slog.String("subject", l.subject), slog.Any("error", err))
	}
}

// put fails with mail_busy (unavailable) when too many wait.
func (o *Outbox) put(l letter) error {
	select {
	case o.letters <- l:
		return nil
	default:
		return fault.New(fault.Unavailable, "mail_busy", "too many mails are waiting to be sent").Do("try again in a few minutes")
	}
}
