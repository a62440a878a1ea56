package httpapi

import (
	"bytes"
	"crypto/rand"
	_ "embed"
	"html/template"
	"net/http"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
)

var (
	//go:embed setup.html
	setupHTML string
	//go:embed register.html
	registerHTML string
	//go:embed reset.html
	resetHTML string

	setupTemplate    = template.Must(template.New("setup").Parse(setupHTML))
	registerTemplate = template.Must(template.New("register").Parse(registerHTML))
	resetTemplate    = template.Must(template.New("reset").Parse(resetHTML))
)

// setupPage is the form behind a set-up link. The link's token stands after #, so it never reaches a server's log.
func (s *Server) setupPage(w http.ResponseWriter, _ *http.Request) error {
	return writePage(w, setupTemplate)
}

// registerPage is the form behind an invitation's link, whose token stands after # too.
func (s *Server) registerPage(w http.ResponseWriter, _ *http.Request) error {
	return writePage(w, registerTemplate)
}

// resetPage asks for a code and sets a new password with it.
func (s *Server) resetPage(w http.ResponseWriter, _ *http.Request) error {
	return writePage(w, resetTemplate)
}

// writePage lets the page run what stands in it and nothing else, and reach this gateway alone.
func writePage(w http.ResponseWriter, of *template.Template) error {
	nonce := rand.Text()
	var page bytes.Buffer
	if err := of.Execute(&page, struct {
		Nonce       string
		MinPassword int
	}{nonce, account.MinPassword}); err != nil {
		return err
	}
	w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'nonce-"+nonce+"'; style-src 'nonce-"+nonce+
		"'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	writeText(w, http.StatusOK, "text/html; charset=utf-8", page.Bytes())
	return nil
}
