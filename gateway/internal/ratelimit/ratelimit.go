// Package ratelimit says who may try once more, by the generic cell rate algorithm: a burst at once, and then one for each interval
// that passes. It must never remember more keys than it is told to, nor keep one in clear where others can read it.
package ratelimit

import "time"

// Quota is a limit. Burst times Every is at most MaxSpan.
type Quota struct {
	Name    string        // what clients are told that it is; [a-z_]
	Every   time.Duration // after which one more is possible; at least a microsecond
	Burst   int           // how many are possible at once; at least 1
	Entries int           // how many keys are remembered; at least 1
}

// MaxSpan keeps the arithmetic far from its ends.
const MaxSpan = 30 * 365 * 24 * time.Hour

// Span is the time in which an exhausted key becomes as good as new.
func (q Quota) Span() time.Duration { return time.Duration(q.Burst) * q.Every }

// Result is what came of one try.
type Result struct {
	Allowed   bool
	Remaining int           // how many more are possible right now
	Reset     time.Duration // until Burst are possible at once again
	Retry     time.Duration // until one is possible; 0 where Allowed
}

// result reads how far the time at which the key is as good as new lies ahead, after an allowed try or unchanged by a refused one.
func (q Quota) result(allowed bool, ahead time.Duration) Result {
	ahead = min(max(ahead, 0), q.Span())
	r := Result{Allowed: allowed, Remaining: int((q.Span() - ahead) / q.Every), Reset: ahead}
	if !allowed {
		r.Remaining, r.Retry = 0, max(ahead+q.Every-q.Span(), 0)
	}
	return r
}
