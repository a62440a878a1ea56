package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kubebyon/kubebyon/gateway/internal/clientaddr"
	"github.com/kubebyon/kubebyon/gateway/internal/ratelimit"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Limiter counts tries of a key.
type Limiter interface {
	Quota() ratelimit.Quota
	// Allow counts one more unless it is one too many. It fails with unavailable where it cannot count.
	Allow(ctx context.Context, key string) (ratelimit.Result, error)
}

// limiterOf gives what counts for a route; nil: nothing does. What strangers may guess at is counted in the database, and while that has not
// been reached its routes answer 503 by themselves.
func (s *Server) limiterOf(l limit) Limiter {
	switch l {
	case byAPI:
		return s.api
	case byJoin:
		return s.join
	case byLookup:
		return s.lookup
	case byAuth:
		if id := s.identity.Load(); id != nil {
			return id.AuthLimit
		}
	}
	return nil
}

// countClient counts the request for its client's address, and says in the answer's headers what is left.
func (s *Server) countClient(w http.ResponseWriter, r *http.Request, rt route) error {
	l := s.limiterOf(rt.limited)
	if l == nil {
		return nil
	}
	found, err := l.Allow(r.Context(), clientaddr.LimitKey(clientAddress(r)))
	if err != nil {
		return err
	}
	if !found.Allowed {
		return refuse(l.Quota(), found, "too many requests from this address")
	}
	showLimit(w.Header(), l.Quota(), found)
	return nil
}

// countAccount counts a try at the account with that address, whether there is one or not. It fails with rate_limited.
func countAccount(ctx context.Context, l Limiter, email string) error {
	if l == nil {
		return nil
	}
	found, err := l.Allow(ctx, strings.ToLower(strings.TrimSpace(email)))
	if err != nil || found.Allowed {
		return err
	}
	return refuse(l.Quota(), found, "too many attempts for this account")
}

// tooManyError is one try too many; showRefusal tells the client when the next one is possible.
type tooManyError struct {
	refused *fault.Error
	quota   ratelimit.Quota
	result  ratelimit.Result
}

func (e *tooManyError) Error() string { return e.refused.Error() }
func (e *tooManyError) Unwrap() error { return e.refused }

func refuse(q ratelimit.Quota, found ratelimit.Result, text string) error {
	return &tooManyError{quota: q, result: found,
		refused: fault.New(fault.RateLimited, "rate_limited", "%s", text).Do("try again in %d s", seconds(found.Retry))}
}

// showRefusal sets the headers of an answer where err is one try too many.
func showRefusal(h http.Header, err error) {
	var e *tooManyError
	if errors.As(err, &e) {
		showLimit(h, e.quota, e.result)
		h.Set("Retry-After", strconv.FormatInt(seconds(e.result.Retry), 10))
	}
}

// showLimit adds a limit to the lists of the RateLimit header fields (draft-ietf-httpapi-ratelimit-headers): the whole quota, q, is there
// again after w seconds without a request, and after t seconds from now; r more are possible right now.
func showLimit(h http.Header, q ratelimit.Quota, found ratelimit.Result) {
	h.Add("RateLimit-Policy", fmt.Sprintf("%q;q=%d;w=%d", q.Name, q.Burst, seconds(q.Span())))
	h.Add("RateLimit", fmt.Sprintf("%q;r=%d;t=%d", q.Name, found.Remaining, seconds(found.Reset)))
}

// seconds rounds up: whoever waits that long has waited long enough.
func seconds(d time.Duration) int64 { return max(1, int64((d+time.Second-1)/time.Second)) }
