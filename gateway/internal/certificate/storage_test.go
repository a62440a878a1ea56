package certificate_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/kubebyon/kubebyon/gateway/internal/certificate"
	"github.com/kubebyon/kubebyon/gateway/internal/keyring"
	store "github.com/kubebyon/kubebyon/gateway/internal/postgres"
	"github.com/kubebyon/kubebyon/gateway/internal/postgres/migrations"
	"github.com/kubebyon/kubebyon/pkg/postgres"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

func open(t *testing.T) (*store.Store, *pgxpool.Pool) {
	t.Helper()
	pool, err := postgres.Open(t.Context(), pgtest.New(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := postgres.Migrate(t.Context(), pool, "gateway", migrations.FS); err != nil {
		t.Fatal(err)
	}
	return store.NewStore(pool), pool
}

func keys(t *testing.T) keyring.Keyring {
	t.Helper()
	k, err := keyring.Parse(keyring.New())
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// What is stored is sealed for its own path, and read back.
func TestStorageSeals(t *testing.T) {
	rows, pool := open(t)
	s := certificate.NewStorage(rows, keys(t), slog.New(slog.DiscardHandler))
	ctx := t.Context()
	if err := s.Store(ctx, "a/b", []byte("canary")); err != nil {
		t.Fatal(err)
	}
	if sealed, _, err := rows.File(ctx, "a/b"); err != nil || strings.Contains(string(sealed), "canary") {
		t.Errorf("the store has it in clear: %v", err)
	}
	if value, err := s.Load(ctx, "a/b"); err != nil || string(value) != "canary" {
		t.Errorf("%q %v", value, err)
	}
	if _, err := pool.Exec(ctx, `insert into certificate_files (path, sealed) select 'a/c', sealed from certificate_files`); err != nil {
		t.Fatal(err)
	}
	if value, err := s.Load(ctx, "a/c"); err == nil {
		t.Errorf("a row that was moved opens: %q", value)
	}
	if value, err := certificate.NewStorage(rows, keys(t), nil).Load(ctx, "a/b"); err == nil {
		t.Errorf("another key opens it: %q", value)
	}
	if err := certificate.NewStorage(rows, keyring.Keyring{}, nil).Store(ctx, "a/d", []byte("canary")); err == nil || s.Exists(ctx, "a/d") {
		t.Errorf("it is stored without a key: %v", err)
	}
}

// Absence is fs.ErrNotExist, and a failure is none.
func TestStorageAbsence(t *testing.T) {
	rows, pool := open(t)
	s := certificate.NewStorage(rows, keys(t), slog.New(slog.DiscardHandler))
	ctx := t.Context()
	_ = s.Store(ctx, "x/y/z", []byte("1"))
	_ = s.Store(ctx, "x/y2", []byte("1"))
	_ = s.Store(ctx, "xy", []byte("1"))
	for _, path := range []string{"", "x/y/z/a", "x/", "y"} {
		if _, err := s.Load(ctx, path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Load %q: %v", path, err)
		}
	}
	if _, err := s.List(ctx, "z", true); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for path, want := range map[string]certmagic.KeyInfo{"x": {Key: "x"}, "x/y": {Key: "x/y"}, "xy": {Key: "xy", IsTerminal: true}, "x/y2": {Key: "x/y2", IsTerminal: true}} {
		got, err := s.Stat(ctx, path)
		if err != nil || got.Key != want.Key || got.IsTerminal != want.IsTerminal || !s.Exists(ctx, path) {
			t.Errorf("%s: %+v %v", path, got, err)
		}
	}
	if got, err := s.List(ctx, "x", false); err != nil || !slices.Equal(got, []string{"x/y", "x/y2"}) {
		t.Errorf("%v %v", got, err)
	}
	if got, err := s.List(ctx, "", false); err != nil || !slices.Equal(got, []string{"x", "xy"}) {
		t.Errorf("%v %v", got, err)
	}
	if got, err := s.List(ctx, "x", true); err != nil || !slices.Equal(got, []string{"x/y/z", "x/y2"}) {
		t.Errorf("%v %v", got, err)
	}
	// What is deleted is what is at the path and below, and what looks like a pattern is none.
	for _, c := range []struct {
		path string
		left []string
	}{
		{"x/", []string{"x/y/z", "x/y2", "xy"}}, {"x_", []string{"x/y/z", "x/y2", "xy"}}, {"%", []string{"x/y/z", "x/y2", "xy"}},
		{"x/y", []string{"x/y2", "xy"}}, {"x/y", []string{"x/y2", "xy"}}, {"x", []string{"xy"}},
	} {
		err := s.Delete(ctx, c.path)
		if left, _ := s.List(ctx, "", true); err != nil || !slices.Equal(left, c.left) {
			t.Errorf("%s: %v left, %v", c.path, left, err)
		}
	}
	pool.Close()
	if _, err := s.Load(ctx, "a"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a database that is away has nothing: %v", err)
	}
	if _, err := s.Stat(ctx, "a"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a database that is away has nothing: %v", err)
	}
}

// One holder at a time, over two replicas; a wait ends with its context.
func TestStorageLocks(t *testing.T) {
	rows, _ := open(t)
	replicas := []*certificate.Storage{certificate.NewStorage(rows, keys(t), slog.New(slog.DiscardHandler)), certificate.NewStorage(rows, keys(t), slog.New(slog.DiscardHandler))}
	var inside, most atomic.Int32
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			s := replicas[i%2]
			if err := s.Lock(t.Context(), "issue"); err != nil {
				t.Error(err)
				return
			}
			most.Store(max(most.Load(), inside.Add(1)))
			time.Sleep(20 * time.Millisecond)
			inside.Add(-1)
			if err := s.Unlock(t.Context(), "issue"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if most.Load() != 1 {
		t.Errorf("%d at once", most.Load())
	}
	if free, err := rows.Hold(t.Context(), "issue", "somebody", time.Microsecond); err != nil || !free {
		t.Errorf("a lock is left: %v", err)
	}
	if err := replicas[0].Lock(t.Context(), "issue"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := replicas[1].Lock(ctx, "issue"); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	replicas[0].Close()
}

// A lock outlives its holder by the lease alone, and is extended by nobody else.
func TestLeases(t *testing.T) {
	rows, _ := open(t)
	hold := func(holder string, lease time.Duration, want bool) {
		t.Helper()
		if held, err := rows.Hold(t.Context(), "issue", holder, lease); err != nil || held != want {
			t.Errorf("%s: %v %v", holder, held, err)
		}
	}
	hold("a", time.Hour, true)
	hold("b", time.Hour, false)
	if err := rows.LetGo(t.Context(), "issue", "b"); err != nil {
		t.Fatal(err)
	}
	hold("b", time.Hour, false)
	hold("a", time.Microsecond, true) // it may shorten its own
	time.Sleep(time.Millisecond)
	hold("b", time.Hour, true)
	hold("a", time.Hour, false)
}
