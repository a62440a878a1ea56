// Package pgtest gives tests a real PostgreSQL. It starts the machine's own binaries as an unprivileged user, on a Unix
// socket in a temporary folder, and leaves neither process nor file behind, even where the test binary is killed. It must
// never be imported outside of tests, and never skips: no server is a failed test.
package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/pkg/test/internal/leash"
)

const hint = "install it with: apt-get install -y postgresql"

var shared = sync.OnceValues(func() (*Server, error) { return start() })

// New gives the DSN (postgresql://…) of a fresh, empty database in a server that the test binary's tests share. The
// database is dropped when the test ends.
func New(tb testing.TB) string {
	tb.Helper()
	s, err := shared()
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	name := "t_" + strings.ToLower(rand.Text()[:16])
	if err := s.exec("CREATE DATABASE " + name + " TEMPLATE template0"); err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	tb.Cleanup(func() {
		if err := s.exec("DROP DATABASE IF EXISTS " + name + " WITH (FORCE)"); err != nil {
			tb.Errorf("pgtest: %v", err)
		}
	})
	return s.dsn(name)
}

// Server is a PostgreSQL of one test, which may stop and start it.
type Server struct {
	dir   string
	bin   string
	cred  *syscall.Credential
	leash *leash.Leash
}

// Private starts a server for this test alone.
func Private(tb testing.TB) *Server {
	tb.Helper()
	s, err := start()
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	tb.Cleanup(s.Remove)
	return s
}

// DSN of the server's database "postgres"; it stays the same over Stop and Start.
func (s *Server) DSN() string { return s.dsn("postgres") }

// Start starts a server for a program that is a test itself; its end, however it comes, is the server's. Call Remove.
func Start() (*Server, error) { return start() }

// Stop ends the server as a crash would; its data stay.
func (s *Server) Stop(tb testing.TB) {
	tb.Helper()
	if err := s.leash.Keep(); err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	s.leash.Close()
}

// Start brings a stopped server back.
func (s *Server) Start(tb testing.TB) {
	tb.Helper()
	if err := s.run(); err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
}

func (s *Server) dsn(database string) string {
	q := url.Values{"host": {s.dir}, "port": {"5432"}, "sslmode": {"disable"}}
	return "postgresql://kubebyon@/" + database + "?" + q.Encode()
}

func (s *Server) exec(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, s.dsn("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(ctx) }()
	_, err = c.Exec(ctx, sql)
	return err
}

const settings = `
listen_addresses = ''
max_connections = 300
shared_buffers = 32MB
fsync = off
full_page_writes = off
autovacuum = off
log_min_messages = warning
timezone = 'UTC'
`

func start() (*Server, error) {
	bin, err := binaries("/usr/lib/postgresql")
	if err != nil {
		return nil, err
	}
	cred, err := unprivileged()
	if err != nil {
		return nil, err
	}
	// Not under t.TempDir: a socket's path may have 107 bytes, and the shared server outlives its first test.
	dir, err := os.MkdirTemp("/tmp", "kubebyon-pg-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, bin: bin, cred: cred}
	if err := s.initialise(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	if err := s.run(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return s, nil
}

func (s *Server) initialise() error {
	if s.cred != nil {
		if err := os.Chown(s.dir, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(context.Background(), filepath.Join(s.bin, "initdb"), "-D", filepath.Join(s.dir, "data"), "-U", "kubebyon",
		"--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions")
	cmd.Dir, cmd.Env = s.dir, leash.Env(s.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	f, err := os.OpenFile(filepath.Join(s.dir, "data", "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(settings)
	return errors.Join(err, f.Close())
}

// run starts the server and waits until it answers.
func (s *Server) run() error {
	var err error
	s.leash, err = leash.Start(s.dir, s.cred, "QUIT", leash.Command{Name: "postgres",
		Args: []string{filepath.Join(s.bin, "postgres"), "-D", filepath.Join(s.dir, "data"), "-k", s.dir}})
	if err != nil {
		return err
	}
	var last error
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if last = s.exec("SELECT 1"); last == nil {
			return nil
		}
		if text := s.leash.Dead("postgres"); text != "" {
			last = errors.New(text)
			break
		}
	}
	s.leash.Close()
	return fmt.Errorf("the server does not start: %w", last)
}

// Remove ends the server and deletes its data.
func (s *Server) Remove() {
	s.leash.Close()
	_ = os.RemoveAll(s.dir)
}

// binaries gives the folder of the newest installed server: below root as Debian lays it out, or in PATH.
func binaries(root string) (string, error) {
	found, _ := filepath.Glob(filepath.Join(root, "*", "bin", "postgres"))
	slices.SortFunc(found, func(a, b string) int { return version(b) - version(a) })
	if len(found) > 0 {
		return filepath.Dir(found[0]), nil
	}
	path, err := exec.LookPath("postgres")
	if err != nil {
		return "", errors.New("PostgreSQL is not installed; " + hint)
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(path), "initdb")); err != nil {
		return "", errors.New("initdb is not installed beside postgres; " + hint)
	}
	return filepath.Dir(path), nil
}

func version(path string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
	return n
}

// unprivileged gives whom to run as, nil for ourselves: PostgreSQL refuses root.
func unprivileged() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("we are root, PostgreSQL refuses root, and there is no user postgres or nobody to run it as")
}
