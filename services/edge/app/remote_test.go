package app_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/pkg/postgres"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
	"github.com/kubebyon/kubebyon/services/edge/internal/haproxy"
)

// shared is a data plane on a network, with a password, that several replicas write to.
type shared struct {
	*httptest.Server
	away  atomic.Bool
	edits atomic.Int64
	env   []string
}

func (w *world) shared(password string) *shared {
	w.t.Helper()
	log := telemetry.NewLogger(w.t.Output(), "text", "debug")
	plane, err := haproxy.New(haproxy.Options{Dir: w.dir, Log: log})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := plane.Run(ctx); err != nil {
			w.t.Error(err)
		}
	}()
	w.t.Cleanup(func() { cancel(); <-done })
	s := &shared{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		user, pass, _ := r.BasicAuth()
		switch {
		case s.away.Load():
			panic(http.ErrAbortHandler)
		case user != "edge" || pass != password:
			http.Error(rw, "who are you?", http.StatusUnauthorized)
			return
		case r.Method != http.MethodGet:
			s.edits.Add(1)
		}
		plane.Handler().ServeHTTP(rw, r)
	}))
	w.t.Cleanup(s.Close)
	file := filepath.Join(w.t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("canary-plane-password\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	s.env = []string{
		"KUBEBYON_HAPROXY_DATAPLANE_URL", s.URL, "KUBEBYON_HAPROXY_DATAPLANE_USER", "edge", "KUBEBYON_HAPROXY_DATAPLANE_PASSWORD_FILE", file,
		"KUBEBYON_HAPROXY_STATE_DIR", "",
	}
	return s
}

func TestReplicasTakeTurns(t *testing.T) {
	w := newWorld(t)
	plane := w.shared("canary-plane-password")
	stops := []func(){w.edge(plane.env...), w.edge(plane.env...)}
	a := w.tenant(1, "a.example.com", "127.0.0.1")
	w.expect(a.id, "serving")
	if status := w.status(); status.DataPlane.Kind != "remote" || status.DataPlane.API != "v2" {
		t.Errorf("%+v", status.DataPlane)
	}

	// Who writes loses the lock; then one replica ends, and then the first one that is left does not need the other.
	pool, err := postgres.Open(t.Context(), w.dsn, telemetry.NewLogger(t.Output(), "text", "info"))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted`); err != nil {
		t.Fatal(err)
	}
	b := w.tenant(2, "b.example.com", "127.0.0.1")
	w.expect(b.id, "serving")
	for i, stop := range stops {
		if i == len(stops)-1 {
			break
		}
		stop()
		c := w.tenant(3+i, "c.example.com", "127.0.0.1")
		w.expect(c.id, "serving")
		w.answers("c.example.com", c.id)
	}
	w.answers("a.example.com", a.id)
}

func TestTheDataPlaneIsAway(t *testing.T) {
	w := newWorld(t)
	plane := w.shared("canary-plane-password")
	w.edge(plane.env...)
	a := w.tenant(1, "a.example.com", "127.0.0.1")
	w.expect(a.id, "serving")

	plane.away.Store(true)
	b := w.tenant(2, "b.example.com", "127.0.0.1")
	w.expect(b.id, "failed/data_plane_unreachable")
	w.expect(a.id, "serving")
	w.answers("a.example.com", a.id)
	if status := w.status(); status.Problem == nil || status.Problem.Code != "data_plane_unreachable" || status.Count.Routes != 2 {
		t.Errorf("%+v", status)
	}
	plane.away.Store(false)
	w.expect(b.id, "serving")
	w.answers("b.example.com", b.id)

	// Where nothing is to be done nothing is written.
	before := plane.edits.Load()
	w.publish(w.clusters[a.id])
	w.until("it has looked again", func() error {
		if w.state(a.id) != "" || w.status().LastSync.Before(time.Now().Add(-time.Second)) {
			return errors.New("not yet")
		}
		return nil
	})
	if after := plane.edits.Load(); after != before {
		t.Errorf("%d edits for nothing", after-before)
	}
}

func TestTheDataPlaneRefusesUs(t *testing.T) {
	w := newWorld(t)
	plane := w.shared("another")
	w.edge(plane.env...)
	a := w.tenant(1, "a.example.com", "127.0.0.1")
	w.expect(a.id, "failed/data_plane_refused")
	w.mu.Lock()
	reason := w.shown[a.id].Reason
	w.mu.Unlock()
	if strings.Contains(reason.Message+reason.Action, "canary") || reason.Action == "" {
		t.Errorf("%+v", reason)
	}
}
