package idempotency

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Sealer is the gateway's keyring.
type Sealer interface {
	// Seal fails with encryption_key_unset where there is no key.
	Seal(plain, place string) ([]byte, error)
	Open(sealed []byte, place string) (string, error)
}

// What stands before a sealed answer.
const (
	byCredential = 1 // sealed with the credential alone
	byKeyring    = 2 // and with the keyring around that
)

// lock is what an asker's credential makes of one key. The database has the credential's hash alone, which makes none.
type lock struct {
	stamp []byte
	aead  cipher.AEAD
	place string
}

func newLock(a Asker, key string) (lock, error) {
	place := a.UserID + " " + a.Credential + " " + string(hash(key))
	derive := func(use string) ([]byte, error) {
		return hkdf.Key(sha256.New, []byte(a.Secret), nil, "kubebyon idempotency "+use+" "+place, sha256.Size)
	}
	stamp, err := derive("fingerprint")
	if err != nil {
		return lock{}, err
	}
	secret, err := derive("answer")
	if err != nil {
		return lock{}, err
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		return lock{}, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return lock{stamp: stamp, aead: aead, place: "idempotency_keys.answer " + place}, err
}

// fingerprint tells two requests apart. It is made with the credential: a body may hold a password, which a plain hash would let people
// guess at.
func (l lock) fingerprint(r Request) []byte {
	mac := hmac.New(sha256.New, l.stamp)
	for _, part := range [][]byte{[]byte(r.Method), []byte(r.Path), []byte(r.Query), r.Body} {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		mac.Write(size[:])
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// seal gives nil where the answer is too large to be kept.
func (l lock) seal(a Answer, keys Sealer) ([]byte, error) {
	plain, err := encode(a)
	if err != nil || plain == nil {
		return nil, err
	}
	inner := l.aead.Seal(nil, nil, plain, []byte(l.place))
	outer, err := keys.Seal(string(inner), l.place)
	switch f := fault.From(err); {
	case err == nil:
		return append([]byte{byKeyring}, outer...), nil
	case f.Code == "encryption_key_unset":
		return append([]byte{byCredential}, inner...), nil
	}
	return nil, err
}

// open fails with idempotency_answer_sealed, whatever is wrong.
func (l lock) open(sealed []byte, keys Sealer) (Answer, error) {
	refused := func() (Answer, error) { return Answer{}, sealedAway("it cannot be opened any more") }
	if len(sealed) == 0 {
		return refused()
	}
	inner := sealed[1:]
	switch sealed[0] {
	case byCredential:
	case byKeyring:
		opened, err := keys.Open(inner, l.place)
		if err != nil {
			return refused()
		}
		inner = []byte(opened)
	default:
		return refused()
	}
	plain, err := l.aead.Open(nil, nil, inner, []byte(l.place))
	if err != nil {
		return refused()
	}
	a, err := decode(plain)
	if err != nil {
		return refused()
	}
	return a, nil
}
