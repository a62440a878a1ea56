package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/deploy/apiclient"
)

const (
	pace     = 100 * time.Millisecond // 64 clients at this pace leave the machine idle most of the time
	flooders = 16
	readers  = 8
)

// identity measures what a session costs a request, and what a flood of log-ins costs the requests of others.
func (b *bench) identity(ctx context.Context) error {
	gateway, err := url.Parse(b.api.Base)
	if err != nil {
		return err
	}
	cookies := b.api.HTTP.Jar.Cookies(gateway)
	if err := b.sessionCost(ctx, cookies); err != nil {
		return err
	}
	return b.loginFlood(ctx, cookies)
}

// sessionCost compares a route that needs a session with one that needs nothing.
func (b *bench) sessionCost(ctx context.Context, cookies []*http.Cookie) error {
	addresses := []string{b.api.Base + "/api/auth/session", b.api.Base + "/api/openapi.yaml"}
	for _, every := range []time.Duration{pace, 0} {
		var took [2]samples
		for round := range loadRounds + 1 {
			for i, address := range addresses {
				each, err := load{address: address, cookies: cookies, clients: 64, every: every}.run(ctx)
				if err != nil {
					return err
				}
				if round > 0 {
					took[i] = append(took[i], each.median())
				}
			}
		}
		added := make(samples, loadRounds)
		for i := range added {
			added[i] = took[0][i] - took[1][i]
		}
		if every == 0 {
			b.report.comment("The same session's look-up where 64 clients ask without a pause, so that every request waits for the others: %s with it, %s without. It is PostgreSQL's and the gateway's processor time, 64 times over; a session is looked up with every request, so that a log-out counts at once on every replica.",
				took[0].text("ms"), took[1].text("ms"))
			continue
		}
		b.report.add(atMost("what a session adds to a request, 64 clients, p50", added, 0.3, "ms",
			"`GET /api/auth/session` less `GET /api/openapi.yaml` (a larger answer, which needs no session), each the p50 of 64 clients that ask 10 times a second each, in turns"))
	}
	return nil
}

// loginFlood lets clients log in without a pause, each from an address of its own to an account of its own and with the right
// password: that is the flood that no captcha meets, and each log-in costs a whole hash. The rate limits are out of the way.
func (b *bench) loginFlood(ctx context.Context, cookies []*http.Cookie) error {
	read := load{address: b.api.Base + clustersPath, cookies: cookies, clients: readers, every: pace / 5}
	if err := b.fillAccounts(ctx); err != nil {
		return err
	}
	var quiet, flooded samples
	var logins atomic.Int64
	for range loadRounds {
		each, err := read.run(ctx)
		if err != nil {
			return err
		}
		quiet = append(quiet, each.quantile(0.99))
		stop, err := b.flood(ctx, &logins)
		if err != nil {
			return err
		}
		each, err = read.run(ctx)
		if err := errors.Join(err, stop()); err != nil {
			return err
		}
		flooded = append(flooded, each.quantile(0.99))
	}
	if logins.Load() == 0 {
		return errors.New("no log-in succeeded during the flood")
	}
	b.report.add(against("reads during a flood of log-ins, p99", flooded, quiet, 3, "ms",
		"`GET …/clusters` by 8 clients, 50 times a second each, while 16 others log in without a pause (limits lifted by configuration), against the same without them"))
	b.report.comment("The flood's log-ins: %d in %d x %s.", logins.Load(), loadRounds, loadTime)
	return nil
}

// flood logs in until it is stopped; one that is told to come back later counts as answered.
func (b *bench) flood(ctx context.Context, done *atomic.Int64) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	failed := make([]error, flooders)
	for i := range flooders {
		c, err := newClient(b.api.Base)
		if err != nil {
			cancel()
			return nil, err
		}
		c.HTTP.Transport = from{fmt.Sprintf("203.0.113.%d", i), c.HTTP.Transport}
		group.Go(func() {
			for ctx.Err() == nil {
				err := c.Call(ctx, http.MethodPost, "/api/auth/login", map[string]string{"email": flooder(i), "password": b.adminPassword}, nil)
				var problem *apiclient.ProblemError
				switch {
				case err == nil:
					done.Add(1)
				case ctx.Err() != nil || errors.As(err, &problem) && problem.Status == http.StatusServiceUnavailable:
				default:
					failed[i] = err
					return
				}
			}
		})
	}
	return func() error { cancel(); group.Wait(); return errors.Join(failed...) }, nil
}

func flooder(i int) string { return fmt.Sprintf("flooder-%d@example.com", i) }

// fillAccounts makes an account for each flooder, with the administrator's password.
func (b *bench) fillAccounts(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, b.database.DSN())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for i := range flooders {
		if _, err := conn.Exec(ctx, `INSERT INTO users (id, email, password_hash, role)
			SELECT 'usr_' || lpad($1::text, 20, '0'), $2, password_hash, 'user' FROM users WHERE email = $3`, strconv.Itoa(i), flooder(i), adminEmail); err != nil {
			return err
		}
	}
	return nil
}

// from is a proxy of another client.
type from struct {
	client string
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (f from) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Forwarded-For", f.client)
	return f.next.RoundTrip(r)
}
