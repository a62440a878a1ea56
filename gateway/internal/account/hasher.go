package account

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/alexedwards/argon2id"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Hasher hashes passwords with argon2id, a bounded number at a time: each takes 19 MiB and a core, and log-ins must
// not starve other requests. A place rests for as long as it has worked, so that a flood of log-ins takes half of those cores'
// time; who logs in alone does not notice.
type Hasher struct {
	params *argon2id.Params
	slots  chan struct{}
	wait   time.Duration
	nobody string
	done   atomic.Int64
}

// NewHasher makes one that works on at most concurrency passwords at a time; a caller waits up to wait for its turn.
func NewHasher(concurrency int, wait time.Duration) (*Hasher, error) {
	h := &Hasher{
		// OWASP's second choice: the cost of 46 MiB and one pass, with less memory.
		params: &argon2id.Params{Memory: 19 * 1024, Iterations: 2, Parallelism: 1, SaltLength: 16, KeyLength: 32},
		slots:  make(chan struct{}, max(1, concurrency)),
		wait:   wait,
	}
	nobody, err := argon2id.CreateHash(string(random(32)), h.params)
	if err != nil {
		return nil, err
	}
	h.nobody = nobody
	return h, nil
}

// Hash gives the password's PHC string. It fails with unavailable when too many are waiting.
func (h *Hasher) Hash(ctx context.Context, password string) (string, error) {
	if err := h.enter(ctx); err != nil {
		return "", err
	}
	defer h.leave(time.Now())
	h.done.Add(1)
	return argon2id.CreateHash(password, h.params)
}

// Verify compares. An empty hash means that there is no account: the same work is done and the answer is false.
func (h *Hasher) Verify(ctx context.Context, password, hash string) (bool, error) {
	if err := h.enter(ctx); err != nil {
		return false, err
	}
	defer h.leave(time.Now())
	h.done.Add(1)
	if hash == "" {
		_, err := argon2id.ComparePasswordAndHash(password, h.nobody)
		return false, err
	}
	return argon2id.ComparePasswordAndHash(password, hash)
}

// Done says how many passwords it has hashed.
func (h *Hasher) Done() int64 { return h.done.Load() }

func (h *Hasher) enter(ctx context.Context) error {
	select {
	case h.slots <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(h.wait)
	defer timer.Stop()
	select {
	case h.slots <- struct{}{}:
		return nil
	case <-timer.C:
		return fault.New(fault.Unavailable, "login_busy", "too many log-ins are being checked at once").Do("try again in a few seconds")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *Hasher) leave(began time.Time) {
	time.AfterFunc(time.Since(began), func() { <-h.slots })
}
