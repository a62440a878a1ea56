package httpapi

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Every request is bounded, but for downloads: they take as long as somebody reads them.
func TestRequestsAreBounded(t *testing.T) {
	s := New(Options{Log: slog.New(slog.DiscardHandler)})
	var unbounded []string
	for _, rt := range s.table() {
		rt.handle = func(_ http.ResponseWriter, r *http.Request) error {
			if _, bounded := r.Context().Deadline(); !bounded {
				unbounded = append(unbounded, rt.Path)
			}
			return nil
		}
		if rt.access != machine {
			rt.access = public // whoever it is
		}
		s.serve(rt).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(rt.Method, "/", http.NoBody))
	}
	slices.Sort(unbounded)
	if diff := cmp.Diff([]string{"/api/admin/audit/export", "/node/mirror/{name...}"}, unbounded); diff != "" {
		t.Error(diff)
	}
}
