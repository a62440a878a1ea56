package ratelimit

import (
	"context"
	"time"

	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
)

// Local counts in this process alone: each replica allows as much again. The key that was not tried for the longest time makes room
// for a new one.
type Local struct {
	quota   Quota
	limiter *throttled.GCRARateLimiterCtx
}

// NewLocal makes one; now is its clock. It fails where the quota is none.
func NewLocal(q Quota, now func() time.Time) (*Local, error) {
	keys, err := memstore.New(q.Entries)
	if err != nil {
		return nil, err
	}
	keys.SetTimeNow(now)
	limiter, err := throttled.NewGCRARateLimiterCtx(throttled.WrapStoreWithContext(keys),
		throttled.RateQuota{MaxRate: throttled.PerDuration(1, q.Every), MaxBurst: q.Burst - 1})
	if err != nil {
		return nil, err
	}
	// A try fails only to another that succeeded in that moment: there is always an end to it.
	limiter.SetMaxCASAttemptsLimit(1 << 20)
	return &Local{quota: q, limiter: limiter}, nil
}

// Quota is what it was made with.
func (l *Local) Quota() Quota { return l.quota }

// Allow counts one try of key unless it is one too many.
func (l *Local) Allow(ctx context.Context, key string) (Result, error) {
	limited, found, err := l.limiter.RateLimitCtx(ctx, key, 1)
	if err != nil {
		return Result{}, err
	}
	return l.quota.result(!limited, found.ResetAfter), nil
}
