// Package opaque makes the ids and the secrets that say nothing about what they stand for. It must never keep one.
package opaque

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
)

// ID is the prefix and 20 of [a-z0-9], over 100 bits of randomness.
func ID(prefix string) string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	id := make([]byte, 0, 20)
	for len(id) < cap(id) {
		b := make([]byte, 32)
		_, _ = rand.Read(b) // never fails: the process ends where the system has no randomness
		for _, c := range b {
			// 252 is the largest multiple of 36 in a byte: no letter is likelier than another.
			if c < 252 && len(id) < cap(id) {
				id = append(id, alphabet[c%36])
			}
		}
	}
	return prefix + string(id)
}

// Secret is 256 bits of randomness in 43 base64url characters.
func Secret() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

// Hash is what is stored of a secret. It needs no salt: nobody guesses 256 bits.
func Hash(secret string) []byte {
	h := sha256.Sum256([]byte(secret))
	return h[:]
}
