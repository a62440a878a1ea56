package natsauth

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/nats-io/nkeys"
)

// NewSeed makes what a service's KUBEBYON_NATS_NKEY_FILE holds: one line.
func NewSeed() ([]byte, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return nil, fmt.Errorf("natsauth: %w", err)
	}
	seed, err := pair.Seed()
	if err != nil {
		return nil, fmt.Errorf("natsauth: %w", err)
	}
	return append(seed, '\n'), nil
}

// PublicKey is what the NATS server knows of a seed. Its error repeats nothing of the seed.
func PublicKey(seed []byte) (string, error) {
	pair, err := nkeys.FromSeed(bytes.TrimSpace(seed))
	if err == nil {
		var public string
		if public, err = pair.PublicKey(); err == nil && nkeys.IsValidPublicUserKey(public) {
			return public, nil
		}
	}
	return "", errors.New("it is no seed of a user's nkey")
}
