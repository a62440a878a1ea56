package main

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

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

// loginFlood lets clients log in without a pause, with the right password, so that each costs a whole hash, and the rate
// limits out of the way.
func (b *bench) loginFlood(ctx context.Context, cookies []*http.Cookie) error {
	read := load{address: b.api.Base + clustersPath, cookies: cookies, clients: readers, every: pace / 5}
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
		group.Go(func() {
			for ctx.Err() == nil {
				err := c.Call(ctx, http.MethodPost, "/api/auth/login", map[string]string{"email": adminEmail, "password": b.adminPassword}, nil)
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
