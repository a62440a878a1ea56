package secondfactor

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"regexp"
	"strings"
)

const (
	timeDigits     = 6
	recoveryLength = 16 // characters of base 32: 80 bits
	recoveryCodes  = 10
)

// given is a second factor as somebody typed it: one of the two is set, or none where it can be neither.
type given struct{ time, recovery string }

var (
	timeForm     = regexp.MustCompile(`^[0-9]{6}$`)
	recoveryForm = regexp.MustCompile(`^[A-Z2-7]{16}$`)
	dividers     = strings.NewReplacer(" ", "", "-", "")
	lookAlikes   = strings.NewReplacer("0", "O", "1", "I", "8", "B") // base 32 has none of the left ones
)

// read takes a code in any case, with blanks and dashes. Digits of other scripts are no digits.
func read(text string) given {
	if len(text) > 64 {
		return given{}
	}
	code := dividers.Replace(text)
	if timeForm.MatchString(code) {
		return given{time: code}
	}
	if code = lookAlikes.Replace(strings.Map(upper, code)); recoveryForm.MatchString(code) {
		return given{recovery: code}
	}
	return given{}
}

// upper is for ASCII alone: strings.ToUpper makes ASCII letters out of others, such as ı.
func upper(r rune) rune {
	if 'a' <= r && r <= 'z' {
		return r - 'a' + 'A'
	}
	return r
}

// newRecoveryCodes gives codes as they are shown and their hashes.
func newRecoveryCodes(userID string) (shown []string, hashes [][]byte) {
	for range recoveryCodes {
		raw := make([]byte, recoveryLength*5/8)
		_, _ = rand.Read(raw) // never fails
		code := base32.StdEncoding.EncodeToString(raw)
		hashes = append(hashes, hashRecovery(userID, code))
		code = strings.ToLower(code)
		shown = append(shown, code[:4]+"-"+code[4:8]+"-"+code[8:12]+"-"+code[12:])
	}
	return shown, hashes
}

func hashRecovery(userID, code string) []byte {
	h := sha256.Sum256([]byte(userID + "\n" + code))
	return h[:]
}
