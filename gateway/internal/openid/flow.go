package openid

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"strings"
	"time"
)

// FlowLife is how long a person may take at the provider.
const FlowLife = 10 * time.Minute

// flow is one log-in under way. It lives in the browser's cookie alone, so that any replica can finish it. Everything that the
// provider is told derives from seed, and with it from ends and returnTo: a cookie that was changed fits no answer.
type flow struct {
	seed     [32]byte
	ends     time.Time // in whole seconds
	returnTo string
}

func newFlow(now time.Time, returnTo string) flow {
	f := flow{ends: now.Add(FlowLife).Truncate(time.Second), returnTo: returnTo}
	_, _ = rand.Read(f.seed[:]) // never fails
	return f
}

// cookie is what parseFlow reads: the seed, the end in seconds since 1970, and where to return to.
func (f flow) cookie() string {
	return base64.RawURLEncoding.EncodeToString(f.seed[:]) + "." + strconv.FormatInt(f.ends.Unix(), 10) + "." +
		base64.RawURLEncoding.EncodeToString([]byte(f.returnTo))
}

// parseFlow says whether text is a flow that has not ended.
func parseFlow(text string, now time.Time) (flow, bool) {
	parts := strings.Split(text, ".")
	if len(text) > 4096 || len(parts) != 3 {
		return flow{}, false
	}
	var f flow
	seed, err := base64.RawURLEncoding.Strict().DecodeString(parts[0])
	if err != nil || len(seed) != len(f.seed) {
		return flow{}, false
	}
	copy(f.seed[:], seed)
	ends, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return flow{}, false
	}
	f.ends = time.Unix(ends, 0)
	returnTo, err := base64.RawURLEncoding.Strict().DecodeString(parts[2])
	if err != nil {
		return flow{}, false
	}
	f.returnTo = string(returnTo)
	if !now.Before(f.ends) || f.ends.Sub(now) > FlowLife || !LocalPath(f.returnTo) {
		return flow{}, false
	}
	return f, true
}

func (f flow) state() string    { return f.derive("state") }
func (f flow) nonce() string    { return f.derive("nonce") }
func (f flow) verifier() string { return f.derive("verifier") } // 43 characters, as PKCE wants at least

// derive gives 256 bits that tell nothing about the seed, nor about what is derived for another purpose.
func (f flow) derive(purpose string) string {
	mac := hmac.New(sha256.New, f.seed[:])
	_, _ = mac.Write([]byte(purpose + "\x00"))
	_, _ = mac.Write(binary.BigEndian.AppendUint64(nil, uint64(f.ends.Unix())))
	_, _ = mac.Write([]byte(f.returnTo))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
