package httpapi

import (
	"bytes"
	"crypto/rand"
	"embed"
	"html/template"
	"net/http"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
)

//go:embed pages
var pageFiles embed.FS

var (
	setupPage    = parsePage("setup.html")
	registerPage = parsePage("register.html")
	resetPage    = parsePage("reset.html")
	openIDPage   = parsePage("openid.html")
)

func parsePage(name string) *template.Template {
	return template.Must(template.ParseFS(pageFiles, "pages/layout.html", "pages/"+name))
}

// form shows a page that sends what is typed to the API. What a link brings along stands after #, so it never reaches a server's log.
func (s *Server) form(page *template.Template) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, _ *http.Request) error {
		return writePage(w, http.StatusOK, page, map[string]any{"MinPassword": account.MinPassword})
	}
}

// writePage lets the page run what stands in it and nothing else, and reach this gateway alone.
func writePage(w http.ResponseWriter, status int, page *template.Template, data map[string]any) error {
	nonce := rand.Text()
	data["Nonce"] = nonce
	var text bytes.Buffer
	if err := page.ExecuteTemplate(&text, "page", data); err != nil {
		return err
	}
	w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'nonce-"+nonce+"'; style-src 'nonce-"+nonce+
		"'; img-src data:; media-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	writeText(w, status, "text/html; charset=utf-8", text.Bytes())
	return nil
}
