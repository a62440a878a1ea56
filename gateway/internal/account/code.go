package account

import (
	"crypto/sha256"
	"strings"
	"time"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// CodeLife is how long a mailed code works.
const CodeLife = 15 * time.Minute

// MaxCodeTries is how often a code may be tried, right or wrong.
const MaxCodeTries = 5

// Purpose is what a mailed code is for; it works for nothing else.
type Purpose string

// The purposes.
const (
	ToRegister Purpose = "register"
	ToReset    Purpose = "reset_password"
)

// Crockford's base 32, in which no two characters look alike. Ten of them are 50 bits.
const (
	codeAlphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	codeLength   = 10
)

func newCode() string {
	code := random(codeLength)
	for i, b := range code {
		code[i] = codeAlphabet[b%32] // 32 divides 256: no character is likelier than another
	}
	return string(code)
}

// showCode is the form in mails, XXXXX-XXXXX.
func showCode(code string) string { return code[:codeLength/2] + "-" + code[codeLength/2:] }

var lookAlikes = strings.NewReplacer("-", "", " ", "", "O", "0", "I", "1", "L", "1")

// readCode takes a code as people type it: in any case, with or without the dash, O for 0 and I or L for 1. What cannot be
// a code gives an empty text.
func readCode(text string) string {
	if len(text) > 4*codeLength {
		return ""
	}
	code := lookAlikes.Replace(strings.ToUpper(text))
	if len(code) != codeLength || strings.Trim(code, codeAlphabet) != "" {
		return ""
	}
	return code
}

// hashCode ties the code to its address and purpose. An empty code gives a hash that no stored one has.
func hashCode(p Purpose, email, code string) []byte {
	h := sha256.Sum256([]byte(string(p) + "\n" + email + "\n" + code))
	return h[:]
}

func codeWrong() error {
	return fault.New(fault.Invalid, "code_wrong", "the code is wrong, expired or was tried too often").In("code").
		Do("use the code of the newest mail, or ask for a new one")
}
