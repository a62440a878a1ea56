// Package idempotency lets a request be sent again without being done again: its answer is kept under the key that its asker chose, and
// given once more. It must never store a key, a request or an answer so that the database alone gives it away.
package idempotency

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
)

const (
	// Lease is how long a key stays taken by a request of which nothing more is heard. It has to be longer than a request may take with
	// all that it began elsewhere: otherwise the same thing could be done twice at once.
	Lease = 40 * time.Second
	// Life is how long an answer is kept.
	Life = 24 * time.Hour
	// MaxAnswer bounds what is kept of an answer, in bytes.
	MaxAnswer = 64 << 10
	// MaxPerAccount bounds the keys of an account that count at once.
	MaxPerAccount = 10_000
)

// Asker is an account, and the very credential that it shows: nothing else opens its answers.
type Asker struct {
	UserID     string
	Credential string // the credential's id, ses_… or pat_…
	Secret     telemetry.Secret
}

// Request is what makes two requests the same one.
type Request struct {
	Key, Method, Path, Query string
	Body                     []byte
}

// Answer is what came of a request.
type Answer struct {
	Status  int                 `json:"status"`
	Header  map[string][]string `json:"header"`
	Body    []byte              `json:"body"`
	Objects []string            `json:"objects"` // ids for the audit log
}

// Record is what is stored of a request.
type Record struct {
	Holder      string // one attempt at the request; another one has another
	Credential  string // the asker's, by its id
	Fingerprint []byte
	Done        bool
	Answer      []byte // sealed; nil: it is not done, or its answer is too large to be kept
}

// Store keeps records by the account and the key's hash. Every method fails with unavailable while the database is away.
type Store interface {
	// HoldKey takes the key for lease where no record of it counts, to exactly one of any number of concurrent callers. To the others it
	// gives the record that counts. It removes some of those that count no more, and fails with TooMany where the account has most.
	HoldKey(ctx context.Context, userID string, keyHash []byte, r Record, lease time.Duration, most int) (held bool, found Record, err error)
	// KeepAnswer makes the holder's record one that is done and counts for life; false: the key is another's by now.
	KeepAnswer(ctx context.Context, userID string, keyHash []byte, holder string, answer []byte, life time.Duration) (bool, error)
	// FreeKey forgets the holder's record unless it is done.
	FreeKey(ctx context.Context, userID string, keyHash []byte, holder string) error
}

// Service answers repeated requests.
type Service struct {
	store Store
	keys  Sealer
}

// NewService makes one. keys seals what is sealed with the asker's credential once more; where it has no key that one stands alone.
func NewService(store Store, keys Sealer) *Service { return &Service{store: store, keys: keys} }

// Claim is the right to do a request. Its owner ends it with Keep or Free.
type Claim struct {
	service *Service
	userID  string
	keyHash []byte
	holder  string
	lock    lock
}

// Begin gives a Claim where the request is to be done, and its answer where it has been done. Else it fails with conflict:
// idempotency_in_progress, idempotency_key_reused or idempotency_answer_sealed.
func (s *Service) Begin(ctx context.Context, a Asker, r Request) (*Claim, *Answer, error) {
	l, err := newLock(a, r.Key)
	if err != nil {
		return nil, nil, err
	}
	c := &Claim{service: s, userID: a.UserID, keyHash: hash(r.Key), holder: rand.Text(), lock: l}
	asked := Record{Holder: c.holder, Credential: a.Credential, Fingerprint: l.fingerprint(r)}
	held, found, err := s.store.HoldKey(ctx, a.UserID, c.keyHash, asked, Lease, MaxPerAccount)
	if err != nil {
		return nil, nil, err
	}
	if held {
		return c, nil, nil
	}
	if err := judge(found, asked); err != nil {
		return nil, nil, err
	}
	answer, err := l.open(found.Answer, s.keys)
	if err != nil {
		return nil, nil, err
	}
	return nil, &answer, nil
}

// Keep stores what came of the request. It fails with Lost where the key is another's by now.
func (c *Claim) Keep(ctx context.Context, a Answer) error {
	sealed, err := c.lock.seal(a, c.service.keys)
	if err != nil {
		return err
	}
	kept, err := c.service.store.KeepAnswer(ctx, c.userID, c.keyHash, c.holder, sealed, Life)
	if err == nil && !kept {
		err = Lost()
	}
	return err
}

// Free lets the request be tried again at once.
func (c *Claim) Free(ctx context.Context) error {
	return c.service.store.FreeKey(ctx, c.userID, c.keyHash, c.holder)
}

// judge says why the one that was found does not answer the one that is asked for; nil: it does.
func judge(found, asked Record) error {
	same := found.Credential == asked.Credential
	switch {
	case same && string(found.Fingerprint) != string(asked.Fingerprint):
		return fault.New(fault.Conflict, "idempotency_key_reused", "this key was given with another request").In(Header).
			Do("use a new key for a new request, and the same one only to send the very same request again")
	case !found.Done:
		return fault.New(fault.Conflict, InProgress, "the request with this key is being worked on").In(Header).
			Do("send it again in a second; where nothing more is heard of it the key is free %d s after it began", int(Lease/time.Second))
	case !same:
		return sealedAway("it was asked for with another session or API token")
	case found.Answer == nil:
		return sealedAway("it is too large to be kept")
	}
	return nil
}

// InProgress is the code of a request that is sent again while it is being worked on.
const InProgress = "idempotency_in_progress"

func sealedAway(why string) error {
	return fault.New(fault.Conflict, "idempotency_answer_sealed", "the request with this key has been done, and its answer cannot be given again: %s", why).In(Header).
		Do("look at what there is now; to do it once more use a new key")
}

// TooMany is what one key more than MaxPerAccount meets.
func TooMany() error {
	return fault.New(fault.RateLimited, "idempotency_keys_full", "this account has used %d keys within a day, which is the most", MaxPerAccount).In(Header).
		Do("send the request without a key, or wait")
}

// Lost is what a Claim meets that has been kept for longer than Lease.
func Lost() error {
	return fault.New(fault.Precondition, "idempotency_claim_lost", "the key is another request's by now")
}
