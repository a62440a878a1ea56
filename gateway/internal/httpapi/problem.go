package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// problem is the body of every failure, after RFC 9457.
type problem struct {
	Type    string `json:"type"`
	Title   string `json:"title"`
	Status  int    `json:"status"`
	Code    string `json:"code"`
	Detail  string `json:"detail"`
	Field   string `json:"field,omitempty"`
	Action  string `json:"action,omitempty"`
	TraceID string `json:"trace_id"`
}

// statusOf is the one place that maps kinds to HTTP.
func statusOf(kind fault.Kind) int {
	switch kind {
	case fault.Invalid:
		return http.StatusBadRequest
	case fault.Unauthenticated:
		return http.StatusUnauthorized
	case fault.Forbidden:
		return http.StatusForbidden
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Conflict, fault.Precondition:
		return http.StatusConflict
	case fault.TooLarge:
		return http.StatusRequestEntityTooLarge
	case fault.Unsupported:
		return http.StatusUnsupportedMediaType
	case fault.RateLimited:
		return http.StatusTooManyRequests
	case fault.Unavailable:
		return http.StatusServiceUnavailable
	case fault.Timeout:
		return http.StatusGatewayTimeout
	default:
		return http.StatusInternalServerError
	}
}

// fail answers err, and keeps it for the request's line in the log.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	f := keep(r, err)
	showRefusal(w.Header(), err)
	writeProblem(w, r, statusOf(f.Kind), f)
}

// keep gives err to the request's line in the log.
func keep(r *http.Request, err error) *fault.Error {
	if rec := recordOf(r); rec != nil {
		rec.err = err
	}
	return fault.From(err)
}

func writeProblem(w http.ResponseWriter, r *http.Request, status int, f *fault.Error) {
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "2")
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	write(w, status, "application/problem+json", problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status,
		Code: f.Code, Detail: f.Message, Field: f.Field, Action: f.Action, TraceID: traceID(r.Context()),
	})
}

func writeJSON(w http.ResponseWriter, status int, body any) error {
	write(w, status, "application/json", body)
	return nil
}

func write(w http.ResponseWriter, status int, contentType string, body any) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // commands stay readable; nosniff keeps a browser from seeing HTML
	if err := encoder.Encode(body); err != nil {
		panic(err) // our own types always encode
	}
	writeText(w, status, contentType, text.Bytes())
}

func writeText(w http.ResponseWriter, status int, contentType string, text []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = w.Write(text) // the reader has gone: nobody to tell
}
