// Package haproxy is the data plane on this machine: it runs HAProxy, keeps its configuration file and answers the part of the
// Data Plane API (v2) that the edge needs. It must never know routes or domains: what stands in the configuration is its
// client's matter. The tenants' connections outlive this process: HAProxy runs in a session of its own, and the next
// process takes it over.
package haproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Options of a Plane. Dir and Log are required.
type Options struct {
	Binary string // a path, or a name to look up in PATH; haproxy by default
	// Dir holds haproxy.cfg, maps/, the sockets and HAProxy's log. It is made, and closed to other users. One Plane at a time.
	Dir string
	Log *slog.Logger
	Now func() time.Time // time.Now by default
	// Grace is how long an orderly stop leaves open connections after the listeners are gone; five seconds by default.
	Grace time.Duration
}

// Plane is one HAProxy and its configuration. Run must be running for its Handler to answer.
type Plane struct {
	binary string
	dir    string
	log    *slog.Logger
	now    func() time.Time
	grace  time.Duration

	// mu is held by whoever reads or changes the configuration, or reloads.
	mu     sync.Mutex
	file   file
	txs    transactions
	master *master
	view   *draft // of the file as it is, for typed reads
	viewOf string
	undo   *string // what the file held before the changes that HAProxy has not yet taken; nil where it took all
	loaded string  // the digest of the configuration that HAProxy took last
	good   string  // its text

	version atomic.Int64 // of the file; what the Configuration-Version header says
	columns columns
	reloads reloads
	kick    chan struct{}
	ready   chan struct{}
	ended   chan struct{}
}

// New prepares dir: a configuration without any listener where there is none. It starts nothing.
func New(opts Options) (*Plane, error) {
	if opts.Binary == "" {
		opts.Binary = "haproxy"
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Grace == 0 {
		opts.Grace = 5 * time.Second
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, fmt.Errorf("the folder of the data plane: %w", err)
	}
	// A socket's path has 107 bytes; HAProxy binds a longer name first and renames it.
	if n := len(filepath.Join(dir, masterSocket)) + len(".4194304.tmp"); n > 107 {
		return nil, fmt.Errorf("the folder of the data plane has too long a name for a socket in it: %s", dir)
	}
	if err := os.MkdirAll(filepath.Join(dir, mapsDir), 0o700); err != nil {
		return nil, fmt.Errorf("make the data plane's folder: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a folder
		return nil, fmt.Errorf("close the data plane's folder to others: %w", err)
	}
	p := &Plane{
		binary: opts.Binary, dir: dir, log: opts.Log, now: opts.Now, grace: opts.Grace,
		file: file{path: filepath.Join(dir, configFile), state: filepath.Join(dir, stateFile)},
		kick: make(chan struct{}, 1), ready: make(chan struct{}), ended: make(chan struct{}),
	}
	p.columns, p.reloads.now = newColumns(), opts.Now
	return p, nil
}

// The names in the folder.
const (
	configFile   = "haproxy.cfg"
	stateFile    = "state"
	lockFile     = "lock"
	logFile      = "haproxy.log"
	mapsDir      = "maps"
	masterSocket = "master.sock"
	statsSocket  = "stats.sock"
)

// Run takes over the HAProxy that an earlier process left, or starts one as soon as the configuration has something to listen on,
// and keeps it running until ctx ends; then it stops HAProxy and returns. It fails where the folder is another's or unusable.
func (p *Plane) Run(ctx context.Context) error {
	defer close(p.ended)
	lock, err := p.lockDir(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := p.open(ctx); err != nil {
		return err
	}
	defer p.discard()
	close(p.ready)
	p.supervise(ctx)
	return p.stop(context.WithoutCancel(ctx))
}

// lockDir waits a little for a predecessor that is just ending.
func (p *Plane) lockDir(ctx context.Context) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(p.dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data plane's folder: %w", err)
	}
	for end := time.Now().Add(3*p.grace + 5*time.Second); ; {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			_ = f.Close()
			return nil, fmt.Errorf("the data plane's folder %s is in use by another process: %w", p.dir, err)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// open reads what is there: the file, what HAProxy was last given, and a HAProxy that still runs.
func (p *Plane) open(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	leftovers, _ := filepath.Glob(filepath.Join(p.dir, draftPrefix+"*"))
	for _, old := range leftovers {
		_ = os.RemoveAll(old)
	}
	loaded, err := p.file.open(p.base())
	if err != nil {
		return err
	}
	p.version.Store(p.file.version)
	if good, err := os.ReadFile(p.goodPath()); err == nil && digest(string(good)) == loaded {
		p.loaded, p.good = loaded, string(good)
	}
	if p.adopt(ctx) {
		p.log.Info("took over the HAProxy that was running", "pid", p.master.pid)
		if loaded != digest(p.file.text) {
			p.askReload() // what was written last did not get to it
		}
	}
	return nil
}

func (p *Plane) discard() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.txs.closeAll()
	p.view.close()
	p.view = nil
}

// sync notices what somebody else did to the file, under mu. Their text stays, with a version of its own.
func (p *Plane) sync() error {
	changed, err := p.file.sync(p.loaded)
	if err != nil {
		return err
	}
	if changed {
		p.undo = nil
		p.version.Store(p.file.version)
		p.log.Info("the HAProxy configuration was changed by hand", "version", p.file.version)
	}
	return nil
}

// program is the path of HAProxy.
func (p *Plane) program() (string, error) {
	path, err := exec.LookPath(p.binary)
	if err == nil {
		return filepath.Abs(path)
	}
	// Debian has it where an ordinary user's PATH does not lead.
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin"} {
		if strings.Contains(p.binary, "/") {
			break
		}
		if path, err := exec.LookPath(filepath.Join(dir, p.binary)); err == nil {
			return path, nil
		}
	}
	return "", &MissingError{Binary: p.binary, cause: err}
}

// MissingError says that there is no HAProxy on this machine.
type MissingError struct {
	Binary string
	cause  error
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("the program %s was not found: install HAProxy (on Debian and Ubuntu: apt-get install haproxy), or set the path of the program", e.Binary)
}

// Unwrap gives the cause.
func (e *MissingError) Unwrap() error { return e.cause }

// Handler serves the API, without authentication: it is for the same process.
func (p *Plane) Handler() http.Handler { return p.handler() }
