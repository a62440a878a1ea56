package idempotency

import (
	"crypto/sha256"
	"strings"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

const (
	// Header is where a request has its key.
	Header = "Idempotency-Key"
	// Replayed is the header of an answer that is given once more; its value is true.
	Replayed = "Idempotency-Replayed"
	// MaxKey is the most characters of a key.
	MaxKey = 255
)

// Key reads a request's headers of that name. given is false where there is none. It fails with idempotency_key_invalid.
func Key(headers []string) (key string, given bool, err error) {
	refused := func(why string) (string, bool, error) {
		return "", false, fault.New(fault.Invalid, "idempotency_key_invalid", "the key %s", why).In(Header).
			Do("give one key of 1 to %d visible ASCII characters, such as a UUID", MaxKey)
	}
	switch {
	case len(headers) == 0:
		return "", false, nil
	case len(headers) > 1:
		return refused("is given more than once")
	case headers[0] == "":
		return refused("is empty")
	case len(headers[0]) > MaxKey:
		return refused("is too long")
	case strings.ContainsFunc(headers[0], func(r rune) bool { return r < '!' || r > '~' }):
		return refused("has a character that is not visible ASCII")
	}
	return headers[0], true, nil
}

// hash is what a key is stored by: all are of one length, and what people put into one stays theirs.
func hash(key string) []byte {
	h := sha256.Sum256([]byte(key))
	return h[:]
}
