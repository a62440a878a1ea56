// Package mail sends the system's mail through the server in the settings, as they are at that moment. It must never write
// an address, a subject or a text to the log: they hold codes and say who has an account.
package mail

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/kubebyon/kubebyon/gateway/internal/settings"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

const (
	capacity = 1000             // mails that are waiting or on their way; more are refused
	senders  = 4                // exchanges at once, so that one that hangs holds nobody up
	patience = 20 * time.Second // for one exchange, from the look-up of the name to the last answer
	giveUp   = 5 * time.Minute  // how long a mail is tried: its code is of use for a quarter of an hour
	atStop   = 10 * time.Second // what is left of the queue is sent within this
)

// Settings say where mail goes. It fails with mail_unset (precondition) where there is no server.
type Settings interface {
	MailServer(ctx context.Context) (settings.MailServer, error)
}

// Options of a Mailer.
type Options struct {
	Log      *slog.Logger
	Settings Settings
	Roots    *x509.CertPool // who may sign the server's certificate; nil: the system's
}

// Mailer keeps mail in memory until it is sent: a process that dies loses it, and people ask for another code.
type Mailer struct {
	log     *slog.Logger
	wishes  Settings
	roots   *x509.CertPool
	deliver func(context.Context, letter) error
	places  chan struct{} // one for each mail that is not settled
	queue   chan letter
	ended   atomic.Bool
}

// letter is one mail on its way.
type letter struct {
	id                string // in the log and in its header, for finding it in the server's log
	to, subject, text string
	trace             oteltrace.SpanContext // of the request that asked for it
	since, due        time.Time
	tries             int
}

// New makes a Mailer whose Run sends what Enqueue takes.
func New(o Options) *Mailer {
	m := &Mailer{log: o.Log, wishes: o.Settings, roots: o.Roots, places: make(chan struct{}, capacity), queue: make(chan letter, capacity)}
	m.deliver = m.exchange
	return m
}

// Enqueue takes a mail to be sent soon, and never waits. It fails with email_invalid or mail_subject_invalid (invalid), and
// with mail_busy (unavailable) where too many are waiting already. What becomes of the mail is in the log alone.
func (m *Mailer) Enqueue(ctx context.Context, to, subject, text string) error {
	if err := check(to, subject); err != nil {
		return err
	}
	select {
	case m.places <- struct{}{}:
	default:
		return busy()
	}
	if m.ended.Load() {
		<-m.places
		return busy()
	}
	now := time.Now()
	m.queue <- letter{id: rand.Text(), to: to, subject: subject, text: text, trace: oteltrace.SpanContextFromContext(ctx), since: now, due: now}
	return nil
}

func busy() error {
	return fault.New(fault.Unavailable, "mail_busy", "too many mails are waiting to be sent").Do("try again in a minute")
}

// Send sends one mail now, and says which step failed: mail_dns_failed, mail_connect_failed, mail_tls_failed,
// mail_auth_failed, mail_sender_refused, mail_recipient_refused or mail_refused; unavailable where trying again may help,
// precondition where it will not. Its error never holds the password.
func (m *Mailer) Send(ctx context.Context, to, subject, text string) error {
	if err := check(to, subject); err != nil {
		return err
	}
	return m.deliver(ctx, letter{id: rand.Text(), to: to, subject: subject, text: text})
}

// outcome is what an attempt ended with.
type outcome struct {
	letter
	err  error
	took time.Duration
}

// Run sends until ctx ends, then what is left, for a bounded time. A mail whose sending fails for a reason that may pass is
// tried again, at growing distances.
//
//	queued ──▶ trying ──▶ sent
//	             │ ▲  └──▶ given up (refused for good, or too old)
//	             ▼ │
//	           waiting
func (m *Mailer) Run(ctx context.Context) error {
	sending, cutOff := context.WithCancel(context.WithoutCancel(ctx))
	defer cutOff()
	var (
		results  = make(chan outcome)
		waiting  []letter
		trying   int
		stop     = ctx.Done()
		stopping bool
	)
	try := func(l letter) {
		trying++
		l.tries++
		go func() { results <- m.attempt(sending, l) }() // the loop takes every result before Run returns
	}
	for !stopping || trying+len(waiting)+len(m.queue) > 0 {
		var fresh <-chan letter
		var retry <-chan time.Time
		next := soonest(waiting)
		if trying < senders {
			fresh = m.queue
			if next >= 0 {
				retry = time.After(time.Until(waiting[next].due))
			}
		}
		select {
		case l := <-fresh:
			try(l)
		case <-retry:
			l := waiting[next]
			waiting = append(waiting[:next], waiting[next+1:]...)
			try(l)
		case r := <-results:
			trying--
			if again, due := m.settle(sending, r, stopping); again {
				r.due = due
				waiting = append(waiting, r.letter)
			} else {
				<-m.places
			}
		case <-stop:
			stop, stopping = nil, true
			m.ended.Store(true)
			defer time.AfterFunc(atStop, cutOff).Stop()
			for i := range waiting {
				waiting[i].due = time.Time{} // a last try
			}
		}
	}
	return nil
}

func soonest(waiting []letter) int {
	best := -1
	for i := range waiting {
		if best < 0 || waiting[i].due.Before(waiting[best].due) {
			best = i
		}
	}
	return best
}

func (m *Mailer) attempt(ctx context.Context, l letter) (r outcome) {
	begin := time.Now()
	defer func() {
		if panicked := recover(); panicked != nil {
			m.log.ErrorContext(ctx, "sending mail panicked", slog.String("stack", string(debug.Stack()))) // the value may hold the text
			r = outcome{l, errors.New("panic"), time.Since(begin)}
		}
	}()
	ctx = oteltrace.ContextWithSpanContext(ctx, l.trace)
	return outcome{l, m.deliver(ctx, l), time.Since(begin)}
}

// settle writes what became of an attempt to the log, and says whether and when there is another.
func (m *Mailer) settle(ctx context.Context, r outcome, stopping bool) (again bool, due time.Time) {
	ctx = oteltrace.ContextWithSpanContext(ctx, r.trace)
	about := []slog.Attr{slog.String("mail", r.id), slog.Int("tries", r.tries), slog.Duration("took", r.took)}
	if r.err == nil {
		m.log.LogAttrs(ctx, slog.LevelInfo, "mail sent", about...)
		return false, time.Time{}
	}
	f := fault.From(r.err)
	about = append(about, slog.String("code", f.Code), slog.Any("error", r.err))
	due = time.Now().Add(distance(r.tries))
	switch {
	case stopping:
		m.log.LogAttrs(ctx, slog.LevelWarn, "mail lost at stop", about...)
	case f.Kind != fault.Unavailable && f.Kind != fault.Timeout:
		m.log.LogAttrs(ctx, slog.LevelWarn, "mail refused for good", about...)
	case due.Sub(r.since) > giveUp:
		m.log.LogAttrs(ctx, slog.LevelWarn, "mail given up", about...)
	default:
		m.log.LogAttrs(ctx, slog.LevelWarn, "mail not sent yet, trying again", about...)
		return true, due
	}
	return false, time.Time{}
}

// distance is how long to wait after so many tries: 1 s, 2 s, 4 s … 1 min.
func distance(tries int) time.Duration {
	return min(time.Second<<min(tries-1, 10), time.Minute)
}
