package apitoken

import (
	"regexp"
	"strings"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

var valueForm = regexp.MustCompile(`^kbt_[A-Za-z0-9_-]{43}$`)

// FromHeader reads the one Authorization header that a request may have: `Bearer <token>`, with one blank, and the
// scheme in any case. Anything else, and a second header, is refused as an unknown token is.
func FromHeader(headers []string) (value string, err error) {
	if len(headers) != 1 {
		return "", Refused()
	}
	scheme, value, found := strings.Cut(headers[0], " ")
	if !found || !strings.EqualFold(scheme, "Bearer") || !valueForm.MatchString(value) {
		return "", Refused()
	}
	return value, nil
}

// Refused is the one answer to a token that does not count, whatever the reason.
func Refused() error {
	return fault.New(fault.Unauthenticated, "token_invalid", "the API token is malformed, unknown, expired or revoked").In("Authorization").
		Do("send one header, Authorization: Bearer kbt_…, with a token that is listed under GET /api/auth/tokens")
}
