package postgres_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/kubebyon/kubebyon/pkg/postgres"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

var quiet = slog.New(slog.DiscardHandler)

func migrations(n int) fstest.MapFS {
	m := fstest.MapFS{}
	for i := 1; i <= n; i++ {
		m[fmt.Sprintf("%05d_step.sql", i)] = &fstest.MapFile{Data: fmt.Appendf(nil,
			"-- +goose Up\nSELECT pg_sleep(0.05);\nCREATE TABLE t%d (i int);\nINSERT INTO t%[1]d VALUES (1);\n", i)}
	}
	return m
}

// R1.2: replicas that start at once each end with the tables, and every migration ran once.
func TestMigrateFourAtOnce(t *testing.T) {
	dsn := pgtest.New(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			pool, err := postgres.Open(t.Context(), dsn, quiet)
			if err != nil {
				t.Error(err)
				return
			}
			defer pool.Close()
			for _, name := range []string{"one", "two"} {
				steps := migrations(3)
				if name == "two" {
					steps = fstest.MapFS{"00001_other.sql": {Data: []byte("-- +goose Up\nCREATE TABLE other (i int);\n")}}
				}
				if err := postgres.Migrate(t.Context(), pool, name, steps); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	pool, err := postgres.Open(t.Context(), dsn, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var rows int
	if err := pool.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM t1)+(SELECT count(*) FROM t2)+(SELECT count(*) FROM t3)").Scan(&rows); err != nil || rows != 3 {
		t.Fatalf("%d rows, %v", rows, err)
	}
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM goose_one WHERE version_id > 0").Scan(&rows); err != nil || rows != 3 {
		t.Fatalf("%d versions, %v", rows, err)
	}
	if err := postgres.Migrate(t.Context(), pool, "one", migrations(4)); err != nil {
		t.Fatal("a later release's migration:", err)
	}
	if _, err := pool.Exec(t.Context(), "SELECT * FROM t4"); err != nil {
		t.Fatal(err)
	}
}

// PostgreSQL restarts in the middle: what was applied stays, the rest follows, and nobody has to restart anything.
func TestMigrateOutlivesARestartOfTheServer(t *testing.T) {
	s := pgtest.Private(t)
	pool, err := postgres.Open(t.Context(), s.DSN(), quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	const steps = 40 // two seconds
	done := make(chan error, 1)
	go func() { done <- postgres.Migrate(t.Context(), pool, "long", migrations(steps)) }()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if _, err := pool.Exec(t.Context(), "SELECT * FROM t5"); err == nil {
			break
		} else if time.Since(began) > 20*time.Second {
			t.Fatal("the migrations do not begin")
		}
	}
	s.Stop(t)
	select {
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	s.Start(t)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var versions int
	if err := pool.QueryRow(t.Context(), "SELECT count(DISTINCT version_id) FROM goose_long WHERE version_id > 0").Scan(&versions); err != nil || versions != steps {
		t.Errorf("%d versions, %v", versions, err)
	}
	s.Stop(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := postgres.Migrate(ctx, pool, "long", migrations(steps)); err == nil {
		t.Error("it succeeds without a server")
	}
	s.Start(t)
}

func TestFailedMigrationIsUndoneAndNamed(t *testing.T) {
	pool, err := postgres.Open(t.Context(), pgtest.New(t), quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	m := migrations(1)
	m["00002_bad.sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\nCREATE TABLE half (i int);\nSELECT nonsense;\n")}
	if err := postgres.Migrate(t.Context(), pool, "one", m); err == nil || !strings.Contains(err.Error(), "00002_bad.sql") {
		t.Fatalf("got %v", err)
	}
	if _, err := pool.Exec(t.Context(), "SELECT * FROM t1"); err != nil {
		t.Fatal("the migration before the failed one is gone:", err)
	}
	if _, err := pool.Exec(t.Context(), "SELECT * FROM half"); err == nil {
		t.Fatal("half a migration stayed")
	}
	delete(m, "00002_bad.sql")
	if err := postgres.Migrate(t.Context(), pool, "one", m); err != nil {
		t.Fatal("the lock was not given back:", err)
	}
	if err := postgres.Migrate(t.Context(), pool, "a; DROP", m); err == nil {
		t.Fatal("a name that is no name was accepted")
	}
}

func TestSearchPathAndTimeouts(t *testing.T) {
	pool, err := postgres.Open(t.Context(), pgtest.New(t)+"&search_path=evil&statement_timeout=100", quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var path string
	if err := pool.QueryRow(t.Context(), "SHOW search_path").Scan(&path); err != nil || path != "public" {
		t.Fatalf("search_path %q, %v", path, err)
	}
	if _, err := pool.Exec(t.Context(), "SELECT pg_sleep(5)"); err == nil || !strings.Contains(err.Error(), "57014") {
		t.Fatalf("a slow statement: %v", err)
	}
}

func TestOpenWaitsForTheServer(t *testing.T) {
	s := pgtest.Private(t)
	s.Stop(t)
	var log bytes.Buffer
	done := make(chan error, 1)
	go func() {
		pool, err := postgres.Open(t.Context(), s.DSN(), slog.New(slog.NewTextHandler(&log, nil)))
		if err == nil {
			pool.Close()
		}
		done <- err
	}()
	time.Sleep(300 * time.Millisecond)
	s.Start(t)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "postgres cannot be reached yet") {
		t.Fatalf("it waited without a word: %s", &log)
	}
}

func TestOpenGivesUpWithContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var log bytes.Buffer
	_, err := postgres.Open(ctx, "postgresql://u:hunter2@127.0.0.1:1/x", slog.New(slog.NewTextHandler(&log, nil)))
	if err == nil || strings.Contains(err.Error()+log.String(), "hunter2") {
		t.Fatalf("got %v\n%s", err, &log)
	}
}

func TestHopelessDSNsFailAtOnceAndHidePasswords(t *testing.T) {
	good := pgtest.New(t)
	for _, dsn := range []string{
		"", "mysql://u:hunter2@h/x", "postgresql://u:hunter2@h:port/x", "postgresql://u:hunter2@[::1/x%zz",
		strings.Replace(good, "/t_", "/absent_", 1), "host=x password=hunter2",
	} {
		start := time.Now()
		_, err := postgres.Open(t.Context(), dsn, quiet)
		if err == nil {
			t.Fatalf("%q was accepted", dsn)
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the password is shown: %v", err)
		}
		if time.Since(start) > 2*time.Second {
			t.Errorf("%q took %v", dsn, time.Since(start))
		}
	}
}
