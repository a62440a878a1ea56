package dataplane

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// mends tells whether reading the configuration again may help: somebody else changed it.
func mends(err error) bool {
	var refused *apiError
	if !errors.As(err, &refused) {
		return false
	}
	switch refused.status {
	case http.StatusNotFound, http.StatusNotAcceptable, http.StatusConflict, http.StatusTooManyRequests:
		return true
	case http.StatusBadRequest:
		return !isValidation(refused)
	}
	return false
}

// tooMany tells that the API takes no more transactions; others may have left theirs open.
func tooMany(err error) bool {
	var refused *apiError
	return errors.As(err, &refused) && refused.status == http.StatusTooManyRequests
}

func isValidation(e *apiError) bool {
	return e.status == http.StatusUnprocessableEntity || e.status == http.StatusBadRequest && strings.Contains(e.message, "validation error")
}

// explain makes the fault that edge.Plane promises. The cause stays hidden.
func (c *Client) explain(ctx context.Context, err error) error {
	var (
		refused *apiError
		strange *strangeError
		reload  *reloadError
	)
	switch {
	case ctx.Err() != nil:
		return fault.From(ctx.Err())
	case errors.As(err, &reload):
		return fault.New(fault.Unavailable, "haproxy_reload_failed", "HAProxy could not start with the new configuration: %s", words(reload.words)).
			Do("see whether another program has the port that HAProxy listens on").Because(err)
	case errors.As(err, &strange):
		return fault.New(fault.Unavailable, "data_plane_unreachable", "what answers at the Data Plane API's address is none").
			Do("the operator looks at the URL of the Data Plane API").Because(err)
	case !errors.As(err, &refused):
		return fault.New(fault.Unavailable, "data_plane_unreachable", "the Data Plane API of HAProxy does not answer").
			Do("see whether it runs; this mends by itself once it does").Because(err)
	}
	switch {
	case refused.status == http.StatusUnauthorized, refused.status == http.StatusForbidden:
		return fault.New(fault.Unavailable, "data_plane_refused", "the Data Plane API does not take our user and password").
			Do("the operator looks at the user and the password of the Data Plane API").Because(err)
	case isValidation(refused), refused.status == http.StatusOK:
		return fault.New(fault.Unavailable, "haproxy_refused", "HAProxy does not accept the configuration: %s", words(refused.message)).
			Do("look at what was changed last in HAProxy's configuration").Because(err)
	case mends(err):
		return fault.New(fault.Unavailable, "data_plane_busy", "others keep changing HAProxy's configuration").
			Do("this is tried again by itself").Because(err)
	case refused.status == http.StatusServiceUnavailable && missing.MatchString(refused.message):
		return fault.New(fault.Unavailable, "haproxy_missing", "there is no HAProxy on this machine").
			Do("install HAProxy, or give the path of its program").Because(err)
	}
	return fault.New(fault.Unavailable, "data_plane_unreachable", "the Data Plane API of HAProxy fails").
		Do("the operator looks at its log").Because(err)
}

var missing = regexp.MustCompile(`(?i)was not found|cannot find haproxy`)

// quotedWords are HAProxy's in the API's answer to a configuration that HAProxy does not accept.
var quotedWords = regexp.MustCompile(`(?m)(?:line=(\d+) +)?msg="(.*)"\s*$`)

// words are HAProxy's own, in one line of bounded length.
func words(message string) string {
	var out []string
	for _, m := range quotedWords.FindAllStringSubmatch(message, -1) {
		text := m[2]
		if m[1] != "" {
			text = "line " + m[1] + ": " + text
		}
		out = append(out, text)
	}
	if out != nil {
		message = strings.Join(out, "; ")
	}
	if message = oneLine(message); message == "" {
		return "it does not say why"
	}
	return message
}

const maxWords = 400

func oneLine(text string) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	text = strings.ToValidUTF8(text, "�")
	if len(text) <= maxWords {
		return text
	}
	cut := maxWords
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}

func joined(words []string) string { return strings.Join(words, " ") }
