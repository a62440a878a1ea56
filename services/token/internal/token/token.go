// Package token is the domain of worker bootstrap tokens: what a token is, who may have one, for how long, and what
// a machine gets for it. It must never keep or print a token's secret half, and it knows no SQL, NATS or Kubernetes.
package token

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract/tokenv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// The bounds of a token's life, in seconds. A bootstrap token always ends.
const (
	DefaultTTL = 7200
	MinTTL     = 60
	MaxTTL     = 7 * 24 * 3600
)

// The lengths of a bootstrap token's halves and of what follows the prefix of our own ids.
const (
	idLength     = 6
	secretLength = 16
	recordLength = 20
)

const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"

// Value is a bootstrap token, id.secret. Every way of printing it shows the id alone; Reveal is the one way out.
type Value struct{ id, secret string }

// ID is the public half, the name of the Secret in the tenant.
func (v Value) ID() string { return v.id }

// Secret is the half that must not be logged, stored or put in an error.
func (v Value) Secret() string { return v.secret }

// Reveal is the whole token, for the Secret in the tenant and the answer to the person who asked for it.
func (v Value) Reveal() string { return v.id + "." + v.secret }

// Hash is what is kept of the token. The secret half holds 82 random bits, so a plain SHA-256 cannot be searched.
func (v Value) Hash() [sha256.Size]byte { return sha256.Sum256([]byte(v.Reveal())) }

// String hides the secret half.
func (v Value) String() string { return v.id + ".[redacted]" }

// Format hides it from every verb.
func (v Value) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, v.String()) }

// LogValue hides it from slog.
func (v Value) LogValue() slog.Value { return slog.StringValue(v.String()) }

// MarshalJSON hides it from encoders.
func (v Value) MarshalJSON() ([]byte, error) { return json.Marshal(v.String()) }

// Parse reads a token that a machine presents. The fault never repeats what was given.
func Parse(text string) (Value, error) {
	if len(text) != idLength+1+secretLength || text[idLength] != '.' || !ofAlphabet(text[:idLength]) || !ofAlphabet(text[idLength+1:]) {
		return Value{}, fault.New(fault.Unauthenticated, "token_malformed",
			"this is not a join token: one has 6 characters, a dot and 16 characters, all of a-z and 0-9").In("token").
			Do("copy the whole join command again, or ask for a new one")
	}
	return Value{id: text[:idLength], secret: text[idLength+1:]}, nil
}

func ofAlphabet(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// newValue draws a token from random.
func newValue(random io.Reader) (Value, error) {
	text, err := draw(random, idLength+secretLength)
	if err != nil {
		return Value{}, err
	}
	return Value{id: text[:idLength], secret: text[idLength:]}, nil
}

// draw gives n characters, each of the 36 equally likely: bytes from the incomplete last round of 36 are thrown away.
func draw(random io.Reader, n int) (string, error) {
	const whole = 256 - 256%len(alphabet)
	text, chunk := make([]byte, 0, n), make([]byte, 2*n)
	for {
		if _, err := io.ReadFull(random, chunk); err != nil {
			return "", err
		}
		for _, b := range chunk {
			if int(b) >= whole {
				continue
			}
			if text = append(text, alphabet[int(b)%len(alphabet)]); len(text) == n {
				return string(text), nil
			}
		}
	}
}

// lifetime applies the TTL rules: nil is the default, anything outside the bounds is refused.
func lifetime(seconds *int64) (time.Duration, error) {
	if seconds == nil {
		return DefaultTTL * time.Second, nil
	}
	if *seconds < MinTTL || *seconds > MaxTTL {
		return 0, fault.New(fault.Invalid, "ttl_out_of_range", "ttl_seconds is %d; it accepts %d to %d", *seconds, MinTTL, MaxTTL).
			In("ttl_seconds").Do("leave it out for %d seconds, or give a number in that range", DefaultTTL)
	}
	return time.Duration(*seconds) * time.Second, nil
}

// Record is what is kept of a token.
type Record struct {
	ID         string // tok_…
	ClusterID  string
	TokenID    string
	Hash       [sha256.Size]byte
	CreatedBy  string
	CreatedAt  time.Time
	ExpiresAt  time.Time
	RevokedAt  *time.Time
	LastUsedAt *time.Time
}

// Status at the time now. A token that was revoked stays revoked after it would have expired.
func (r Record) Status(now time.Time) tokenv1.Status {
	switch {
	case r.RevokedAt != nil:
		return tokenv1.Revoked
	case !now.Before(r.ExpiresAt):
		return tokenv1.Expired
	default:
		return tokenv1.Active
	}
}

// Public is the record as its cluster's users see it.
func (r Record) Public(now time.Time) tokenv1.Token {
	return tokenv1.Token{
		ID: r.ID, ClusterID: r.ClusterID, TokenID: r.TokenID, Status: r.Status(now), CreatedBy: r.CreatedBy,
		CreatedAt: r.CreatedAt, ExpiresAt: r.ExpiresAt, RevokedAt: r.RevokedAt, LastUsedAt: r.LastUsedAt,
	}
}

// find picks the record of v among those that share its public half, in a time that does not depend on how much of
// the secret was guessed.
func find(records []Record, v Value) (Record, bool) {
	hash, found, at := v.Hash(), 0, 0
	for i := range records {
		same := subtle.ConstantTimeCompare(hash[:], records[i].Hash[:])
		at = subtle.ConstantTimeSelect(same, i, at)
		found |= same
	}
	if found == 0 {
		return Record{}, false
	}
	return records[at], true
}

// admit says whether a presented token still opens anything.
func admit(records []Record, v Value, now time.Time) (Record, error) {
	record, ok := find(records, v)
	if !ok {
		return Record{}, fault.New(fault.Unauthenticated, "token_unknown", "this join token is not known here").In("token").
			Do("copy the whole join command again, or create a new join token for the cluster")
	}
	switch record.Status(now) {
	case tokenv1.Revoked:
		return Record{}, fault.New(fault.Unauthenticated, "token_revoked", "this join token was revoked at %s", record.RevokedAt.UTC().Format(time.RFC3339)).
			In("token").Do("create a new join token for the cluster and use its command")
	case tokenv1.Expired:
		return Record{}, fault.New(fault.Unauthenticated, "token_expired", "this join token expired at %s", record.ExpiresAt.UTC().Format(time.RFC3339)).
			In("token").Do("create a new join token for the cluster and use its command")
	}
	return record, nil
}

// Entropy is the source that production uses.
func Entropy() io.Reader { return rand.Reader }
