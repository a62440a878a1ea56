package tenant

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestRedirectsAreNotFollowed(t *testing.T) {
	reached := false
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer inside.Close()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/good" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		http.Redirect(w, r, inside.URL, http.StatusFound)
	}))
	defer api.Close()
	client := &http.Client{Transport: noRedirects{http.DefaultTransport}}
	for path, want := range map[string]bool{"/good": true, "/bad": false} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, api.URL+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err == nil {
			_ = res.Body.Close()
		}
		if (err == nil) != want || (err != nil && !strings.Contains(err.Error(), "redirect")) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if reached {
		t.Error("a redirect was followed")
	}
}
