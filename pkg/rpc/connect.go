package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	dialTimeout   = 2 * time.Second
	reconnectWait = 500 * time.Millisecond
)

var inboxName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// Connect gives a connection that has been made once and then reconnects for ever, saying so in the log. It waits for the
// first one until ctx ends; refused credentials and a malformed URL end it at once. name is what the NATS server shows,
// and gives the process its own inbox, _INBOX_<name>, so that an allow-list can keep others from reading its answers.
// Nothing is buffered while it is disconnected: calls fail at once instead. The caller closes it.
func Connect(ctx context.Context, url, name string, log *slog.Logger) (*nats.Conn, error) {
	if err := checkURL(url); err != nil {
		return nil, err
	}
	opts := []nats.Option{
		nats.Name(name),
		nats.Timeout(dialTimeout),
		nats.MaxReconnects(-1), // the default gives up after 60
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(20 * time.Second),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("NATS connection lost; reconnecting", slog.String("error", err.Error()))
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { log.Info("NATS connection restored") }),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			log.Error("NATS reported an error", slog.String("subject", subject), slog.String("error", err.Error()))
		}),
	}
	if inboxName.MatchString(name) {
		opts = append(opts, nats.CustomInboxPrefix("_INBOX_"+name))
	}
	wait := 100 * time.Millisecond
	for {
		conn, err := nats.Connect(url, opts...)
		if err == nil {
			return conn, nil
		}
		if errors.Is(err, nats.ErrAuthorization) {
			return nil, fmt.Errorf("NATS refused our credentials: %w", err)
		}
		if ctx.Err() == nil {
			log.WarnContext(ctx, "NATS cannot be reached yet; trying again", slog.String("error", err.Error()), slog.Duration("wait", wait))
		}
		if !sleep(ctx, wait) {
			return nil, fmt.Errorf("gave up waiting for NATS (%w): %w", context.Cause(ctx), err)
		}
		wait = min(wait*2, 3*time.Second)
	}
}

// checkURL is here because the library's own error repeats the URL, password and all.
func checkURL(urls string) error {
	for _, u := range strings.Split(urls, ",") {
		p, err := url.Parse(strings.TrimSpace(u))
		if err != nil || p.Host == "" || (p.Scheme != "nats" && p.Scheme != "tls") {
			return errors.New("the NATS URL is not valid; it accepts nats://host:4222 or tls://host:4222, several separated by commas")
		}
	}
	return nil
}
