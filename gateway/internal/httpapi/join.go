package httpapi

import (
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/kubebyon/kubebyon/gateway/internal/mirror"
	"github.com/kubebyon/kubebyon/pkg/contract/tokenv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// codeHeader tells a program why it got no join script, or one that only fails.
const codeHeader = "X-KubeBYON-Code"

var joinTokenForm = regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`)

func (s *Server) joinScript(w http.ResponseWriter, r *http.Request) error {
	script, err := s.fetchJoinScript(r)
	if err != nil {
		return err
	}
	writeScript(w, http.StatusOK, script)
	return nil
}

// refuseScript answers `curl -fsSL --retry 10 … | sh`. An HTTP error would leave sh an empty script and success, so a refusal is a script too: it says
// why and exits 1. One request too many is an error all the same: the join command's curl waits for Retry-After and tries
// again. A client that accepts JSON gets the plain error.
func (s *Server) refuseScript(w http.ResponseWriter, r *http.Request, err error) {
	f := keep(r, err)
	w.Header().Set(codeHeader, f.Code)
	if wantsJSON(r) {
		w.Header().Set("Vary", "Accept")
		s.fail(w, r, err)
		return
	}
	showRefusal(w.Header(), err)
	status := http.StatusOK
	if f.Kind == fault.RateLimited {
		status = http.StatusTooManyRequests
	}
	writeScript(w, status, refusal(f, traceID(r.Context())))
}

func writeScript(w http.ResponseWriter, status int, script string) {
	w.Header().Set("Vary", "Accept")
	writeText(w, status, "text/x-shellscript; charset=utf-8", []byte(script))
}

func (s *Server) fetchJoinScript(r *http.Request) (string, error) {
	const again = "copy the whole join command again, or make a new one in the console"
	values, err := query(r)
	if err != nil {
		return "", err
	}
	token := values.Get("token")
	if token == "" {
		return "", fault.New(fault.Invalid, "join_token_missing", "the address has no token").In("token").Do(again)
	}
	if !joinTokenForm.MatchString(token) {
		return "", fault.New(fault.Invalid, "join_token_malformed", "the address's token is not of the form id.secret").In("token").Do(again)
	}
	concerns(r, "join_token:"+token[:6]) // the half that lists show
	services, err := s.withServices()
	if err != nil {
		return "", err
	}
	id, err := s.withIdentity()
	if err != nil {
		return "", err
	}
	now, err := id.Settings.Read(r.Context())
	if err != nil {
		return "", err
	}
	files, err := s.mirror.Manifest(r.Context())
	if err != nil {
		return "", err
	}
	ask := tokenv1.JoinScriptRequest{Token: token, JoinBaseURL: now.JoinBaseURL, Mirror: make([]tokenv1.MirrorFile, 0, len(files))}
	for _, f := range files {
		ask.Mirror = append(ask.Mirror, tokenv1.MirrorFile{Name: f.Name, SHA256: f.SHA256, Size: f.Size})
	}
	answer, err := services.joinScript(r.Context(), ask)
	if err != nil {
		return "", err
	}
	if answer.Script == "" {
		return "", errors.New("the token service answered without a script")
	}
	return answer.Script, nil
}

func wantsJSON(r *http.Request) bool {
	accept := strings.ToLower(r.Header.Get("Accept"))
	return strings.Contains(accept, "application/json") || strings.Contains(accept, "application/problem+json")
}

// refusal is a script that changes nothing on the machine. Cut short anywhere, it does nothing at all.
func refusal(f *fault.Error, trace string) string {
	lines := []string{"KubeBYON: " + strings.TrimSuffix(f.Message, ".") + "."}
	if f.Action != "" {
		lines = append(lines, "What to do: "+strings.TrimSuffix(f.Action, ".")+".")
	}
	lines = append(lines, "Nothing was changed on this machine. (code "+f.Code+", trace "+trace+")")
	var b strings.Builder
	b.WriteString("#!/bin/sh\n# There is no join script for this request; this one says why and fails.\nkubebyon_refused() {\n")
	for _, line := range lines {
		b.WriteString("    printf '%s\\n' " + quote(line) + " >&2\n")
	}
	b.WriteString("    exit 1\n}\nkubebyon_refused\n")
	return b.String()
}

// quote makes text one word for sh, on one line, with nothing that a terminal would obey.
func quote(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "?"))
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// stall is how long a download may stand still.
const stall = time.Minute

// mirrorFile sends a file to a worker, whole or in ranges.
func (s *Server) mirrorFile(w http.ResponseWriter, r *http.Request) error {
	f, entry, err := s.mirror.Open(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	h := w.Header()
	h.Set("ETag", `"`+entry.SHA256+`"`)
	h.Set("Cache-Control", "no-cache") // ask again, and be told that it is the same
	h.Set("Content-Type", "application/octet-stream")
	out := &downloadWriter{ResponseWriter: w, control: http.NewResponseController(w)}
	http.ServeContent(out, r, "", entry.Modified(), section(f, entry))
	if out.outside {
		writeProblem(w, r, http.StatusRequestedRangeNotSatisfiable, fault.New(fault.Invalid, "range_invalid", "the file has no such range").In("Range"))
	}
	return nil
}

// section bounds the file to the size that the manifest promises.
func section(f io.ReaderAt, entry mirror.File) io.ReadSeeker {
	return io.NewSectionReader(f, 0, entry.Size)
}

// downloadWriter moves the connection's deadline on as long as the client reads: a large file over a slow line
// takes longer than any answer of the API.
type downloadWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	moved   time.Time
	outside bool // the range was refused; the plain text about it is dropped for a problem
}

func (d *downloadWriter) WriteHeader(status int) {
	if status == http.StatusRequestedRangeNotSatisfiable {
		d.outside = true
		return
	}
	d.ResponseWriter.WriteHeader(status)
}

func (d *downloadWriter) Write(b []byte) (int, error) {
	if d.outside {
		return len(b), nil
	}
	if now := time.Now(); now.Sub(d.moved) > stall/6 {
		d.moved = now
		_ = d.control.SetWriteDeadline(now.Add(stall)) // a test's recorder has none
	}
	return d.ResponseWriter.Write(b)
}
