package rpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	dialTimeout   = 2 * time.Second
	reconnectWait = 500 * time.Millisecond
)

// NATS says where the NATS server is and who we are there; embed it in a process's configuration.
type NATS struct {
	NATSURL      string `env:"KUBEBYON_NATS_URL" envDefault:"nats://127.0.0.1:4222" secret:"true" accepts:"a NATS address, such as nats://127.0.0.1:4222 or tls://nats:4222"`
	NATSNKeyFile string `env:"KUBEBYON_NATS_NKEY_FILE" accepts:"the path of a file with the seed of an nkey, or nothing where the server asks for none"`
	NATSCAFile   string `env:"KUBEBYON_NATS_CA_FILE" accepts:"the path of a PEM file with the CA of the NATS server's certificate, or nothing for the system's CAs"`
}

// options are those of who we are. Their errors name the variable, and repeat nothing of a file.
func (n NATS) options() ([]nats.Option, error) {
	if err := checkURL(n.NATSURL); err != nil {
		return nil, err
	}
	var opts []nats.Option
	if n.NATSNKeyFile != "" {
		key, err := nats.NkeyOptionFromSeed(n.NATSNKeyFile)
		if err != nil {
			return nil, unusable("KUBEBYON_NATS_NKEY_FILE", n.NATSNKeyFile, "a file with the seed of an nkey, which only its owner can read", err)
		}
		opts = append(opts, key)
	}
	if n.NATSCAFile != "" {
		pem, err := os.ReadFile(n.NATSCAFile)
		pool := x509.NewCertPool()
		if err != nil || !pool.AppendCertsFromPEM(pem) {
			return nil, unusable("KUBEBYON_NATS_CA_FILE", n.NATSCAFile, "a PEM file with certificates", err)
		}
		opts = append(opts, nats.Secure(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}))
	}
	return opts, nil
}

// unusable leaves out what the library says of a file's content.
func unusable(variable, file, accepts string, err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return fmt.Errorf("%s: %w; it accepts %s", variable, path, accepts)
	}
	return fmt.Errorf("%s: %s is none; it accepts %s", variable, file, accepts)
}

var inboxName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// InboxPrefix is what the subjects begin with that answers to a connection of that name arrive on.
func InboxPrefix(name string) string { return "_INBOX_" + name }

// Connect gives a connection that has been made once and then reconnects for ever, saying so in the log. It waits for the
// first one until ctx ends; refused credentials, a malformed URL and a file that is not what it should be end it at once. name is what the NATS server shows,
// and gives the process its own inbox, _INBOX_<name>, so that an allow-list can keep others from reading its answers.
// Nothing is buffered while it is disconnected: calls fail at once instead. The caller closes it.
func Connect(ctx context.Context, to NATS, name string, log *slog.Logger) (*nats.Conn, error) {
	opts, err := to.options()
	if err != nil {
		return nil, err
	}
	opts = append(opts,
		nats.Name(name),
		nats.Timeout(dialTimeout),
		nats.MaxReconnects(-1), // the default gives up after 60
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(20*time.Second),
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
	)
	if inboxName.MatchString(name) {
		opts = append(opts, nats.CustomInboxPrefix(InboxPrefix(name)))
	}
	wait := 100 * time.Millisecond
	for {
		conn, err := nats.Connect(to.NATSURL, opts...)
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
			return errors.New("KUBEBYON_NATS_URL is not valid; it accepts nats://host:4222 or tls://host:4222, several separated by commas")
		}
	}
	return nil
}
