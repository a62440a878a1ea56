package pgtest_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func TestDatabasesAreFresh(t *testing.T) {
	for range 2 {
		c := connect(t, pgtest.New(t))
		if _, err := c.Exec(t.Context(), "CREATE TABLE x (i int)"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPrivateServerStopsAndStarts(t *testing.T) {
	s := pgtest.Private(t)
	c := connect(t, s.DSN())
	if _, err := c.Exec(t.Context(), "CREATE TABLE kept (i int)"); err != nil {
		t.Fatal(err)
	}
	s.Stop(t)
	if _, err := pgx.Connect(t.Context(), s.DSN()); err == nil {
		t.Fatal("a stopped server answered")
	}
	s.Start(t)
	if _, err := connect(t, s.DSN()).Exec(t.Context(), "SELECT * FROM kept"); err != nil {
		t.Fatal(err)
	}
}

// The test binary runs itself, is killed with SIGKILL, and the server must follow.
func TestNothingIsLeftAfterAKill(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperHang$", "-test.v")
	cmd.Env = append(os.Environ(), "PGTEST_HANG=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	var dir string
	for sc := bufio.NewScanner(out); dir == "" && sc.Scan(); {
		if _, after, ok := strings.Cut(sc.Text(), "DIR="); ok {
			dir = after
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "data", "postmaster.pid")); err != nil {
		t.Fatalf("the helper's server is not up: %v", err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for range 200 {
		if _, err := os.Stat(dir); os.IsNotExist(err) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("%s is still there", dir)
}

func TestHelperHang(t *testing.T) {
	if os.Getenv("PGTEST_HANG") == "" {
		return
	}
	c := connect(t, pgtest.New(t))
	var dir string
	if err := c.QueryRow(t.Context(), "SHOW unix_socket_directories").Scan(&dir); err != nil {
		t.Fatal(err)
	}
	_, _ = os.Stdout.WriteString("DIR=" + dir + "\n")
	select {}
}
