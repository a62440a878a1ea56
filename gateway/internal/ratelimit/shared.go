package ratelimit

import (
	"context"
	"crypto/sha256"
	"sync/atomic"
	"time"
)

// Store counts for all replicas. Every method fails with unavailable while the database is away.
type Store interface {
	// CountTry moves the time at which key is as good as new, or now where that is later, on by every, in one step, unless that would be
	// later than span from now: then it changes nothing and allowed is false. ahead is how far the time lies ahead then; fresh
	// says that the key was not there before.
	CountTry(ctx context.Context, name string, key []byte, every, span time.Duration) (allowed bool, ahead time.Duration, fresh bool, err error)
	// SweepTries leaves the keys that are as good as new last, at most that many.
	SweepTries(ctx context.Context, name string, most int) error
}

// Shared counts exactly over any number of replicas. Of more keys than Entries the oldest make room: those that are as good as new
// soonest, so that nobody makes a key forgotten before its time by bringing fresh ones.
type Shared struct {
	quota Quota
	store Store
	fresh atomic.Uint64
}

// NewShared makes one.
func NewShared(q Quota, store Store) *Shared { return &Shared{quota: q, store: store} }

// Quota is what it was made with.
func (s *Shared) Quota() Quota { return s.quota }

// Allow counts one try of key, which is kept as a hash, unless it is one too many.
func (s *Shared) Allow(ctx context.Context, key string) (Result, error) {
	hash := sha256.Sum256([]byte(s.quota.Name + "\n" + key))
	allowed, ahead, fresh, err := s.store.CountTry(ctx, s.quota.Name, hash[:], s.quota.Every, s.quota.Span())
	if err != nil {
		return Result{}, err
	}
	if every, most := s.room(); fresh && s.fresh.Add(1)%every == 0 {
		// A client that leaves in this moment leaves no rows behind.
		if err := s.store.SweepTries(context.WithoutCancel(ctx), s.quota.Name, most); err != nil {
			return Result{}, err
		}
	}
	return s.quota.result(allowed, ahead), nil
}

// room says after how many fresh keys a replica sweeps, and how many stay. An eighth is made free at a time, which is what eight
// replicas bring between their sweeps: there are never more than Entries.
func (s *Shared) room() (every uint64, most int) {
	if s.quota.Entries < 64 {
		return 1, s.quota.Entries
	}
	return uint64(s.quota.Entries) / 64, s.quota.Entries - s.quota.Entries/8
}
