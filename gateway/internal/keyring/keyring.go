// Package keyring seals the few secrets that the database must give back, such as a second factor's: whoever reads the
// database alone learns none of them. It must never write a key or a plain text anywhere.
package keyring

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// keySize is AES-256's, in bytes.
const keySize = 32

// Keyring seals with its first key and opens with any. The zero Keyring has none and refuses both.
type Keyring struct{ keys []cipher.AEAD }

// Parse reads keys, one in a line: base64 of 32 random bytes, as `openssl rand -base64 32` prints. The first one seals, so
// that a new key goes on top of the old ones. Its errors never repeat the text.
func Parse(text string) (Keyring, error) {
	var k Keyring
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(line)
		if err != nil || len(raw) != keySize {
			return Keyring{}, fmt.Errorf("has a line that is not base64 of %d bytes", keySize)
		}
		block, err := aes.NewCipher(raw)
		if err != nil {
			return Keyring{}, errors.New("has a key that cannot be used")
		}
		sealer, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return Keyring{}, errors.New("has a key that cannot be used")
		}
		k.keys = append(k.keys, sealer)
	}
	if len(k.keys) == 0 {
		return Keyring{}, errors.New("holds no key")
	}
	return k, nil
}

// New makes a random key's text, a line of what Parse reads.
func New() string {
	raw := make([]byte, keySize)
	_, _ = rand.Read(raw) // never fails
	return base64.StdEncoding.EncodeToString(raw)
}

// Unset is the refusal of what needs a key where there is none: precondition, encryption_key_unset.
func Unset() error {
	return fault.New(fault.Precondition, "encryption_key_unset", "secrets cannot be stored: the gateway has no encryption key").
		Do("have the operator set KUBEBYON_ENCRYPTION_KEY_FILE to a file with a line from: openssl rand -base64 32")
}

// Seal encrypts. What it gives opens only with the same place: the table, column and row that it is for.
func (k Keyring) Seal(plain, place string) ([]byte, error) {
	if len(k.keys) == 0 {
		return nil, Unset()
	}
	return k.keys[0].Seal(nil, nil, []byte(plain), []byte(place)), nil
}

// Open decrypts. It fails with encryption_key_unset where there is no key, and with encryption_key_wrong (precondition) where
// no key fits, or the place is another one.
func (k Keyring) Open(sealed []byte, place string) (string, error) {
	if len(k.keys) == 0 {
		return "", Unset()
	}
	for _, key := range k.keys {
		if plain, err := key.Open(nil, nil, sealed, []byte(place)); err == nil {
			return string(plain), nil
		}
	}
	return "", fault.New(fault.Precondition, "encryption_key_wrong", "a stored secret cannot be opened with the gateway's encryption keys").
		Do("have the operator add the key that it was stored with to KUBEBYON_ENCRYPTION_KEY_FILE")
}
