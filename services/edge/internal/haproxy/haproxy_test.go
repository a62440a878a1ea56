package haproxy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/services/edge/internal/haproxy"
)

// patience is for what takes milliseconds on an idle machine.
const patience = 60 * time.Second

const services = "/v2/services/haproxy"

// plane is a Plane that runs, with its API.
type plane struct {
	t    *testing.T
	dir  string
	api  http.Handler
	stop func() error // an orderly end of Run; once
}

func run(t *testing.T, dir, binary string) *plane {
	t.Helper()
	p, err := haproxy.New(haproxy.Options{Dir: dir, Binary: binary, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Grace: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	stopped := false
	out := &plane{t: t, dir: dir, api: p.Handler()}
	out.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			return fmt.Errorf("Run did not end")
		}
	}
	t.Cleanup(func() {
		if err := out.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "haproxy.log"))
			t.Logf("HAProxy's log:\n%s", log)
		}
	})
	return out
}

// shortDir is a folder whose sockets have short enough names.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hx")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

type response struct {
	status int
	header http.Header
	body   string
}

func (p *plane) call(method, path, contentType, body string) response {
	p.t.Helper()
	r := httptest.NewRequestWithContext(p.t.Context(), method, path, strings.NewReader(body))
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	w := httptest.NewRecorder()
	p.api.ServeHTTP(w, r)
	return response{w.Code, w.Header(), w.Body.String()}
}

// want calls and holds the status.
func (p *plane) want(status int, method, path, body string) response {
	p.t.Helper()
	kind := "application/json"
	if strings.Contains(path, "/configuration/raw") || strings.Contains(path, "/storage/maps/") {
		kind = "text/plain"
	}
	got := p.call(method, services+path, kind, body)
	if got.status != status {
		p.t.Fatalf("%s %s: %d %s, want %d", method, path, got.status, got.body, status)
	}
	if v := got.header.Get("Configuration-Version"); v == "" {
		p.t.Fatalf("%s %s: no Configuration-Version", method, path)
	}
	return got
}

func decode[T any](t *testing.T, body string) T {
	t.Helper()
	var out T
	if err := json.Unmarshal([]byte(body), &out); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return out
}

type raw struct {
	Version int64  `json:"_version"`
	Data    string `json:"data"`
}

func (p *plane) raw() raw {
	p.t.Helper()
	return decode[raw](p.t, p.want(200, "GET", "/configuration/raw", "").body)
}

// post puts a configuration there and gives the end of its reload.
func (p *plane) post(text string) ended {
	p.t.Helper()
	got := p.want(202, "POST", fmt.Sprintf("/configuration/raw?version=%d", p.raw().Version), text)
	return p.reload(got.header.Get("Reload-Id"))
}

type ended struct {
	ID        string `json:"id"`
	Status    string `json:"status"`
	Response  string `json:"response"`
	Timestamp int64  `json:"reload_timestamp"`
}

func (p *plane) reload(id string) ended {
	p.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		one := decode[ended](p.t, p.want(200, "GET", "/reloads/"+id, "").body)
		if one.Status != "in_progress" {
			return one
		}
	}
	p.t.Fatalf("reload %s does not end", id)
	return ended{}
}

func (p *plane) succeed(text string) {
	p.t.Helper()
	if got := p.post(text); got.Status != "succeeded" {
		p.t.Fatalf("reload: %+v", got)
	}
}

// backend is a server that sends back what it gets, and its address.
func backend(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); _, _ = io.Copy(conn, conn) }()
		}
	}()
	return l.Addr().String()
}

// freePort is one that the kernel has just given and got back.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// front is what a client appends to the base: one listener that leads to target.
func front(base string, port int, target string) string {
	return base + fmt.Sprintf(`
defaults d
    mode tcp
    timeout connect 5s
    timeout client 75s
    timeout server 75s
frontend f from d
    bind 127.0.0.1:%d
    default_backend b
backend b from d
    server n1 %s
`, port, target)
}

// echo tells whether a connection to port reaches a backend.
func echo(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, "hello"); err != nil {
		return err
	}
	buf := make([]byte, 5)
	if _, err := io.ReadFull(conn, buf); err != nil {
		return err
	}
	if !bytes.Equal(buf, []byte("hello")) {
		return fmt.Errorf("got %q", buf)
	}
	return nil
}

func dial(t *testing.T, port int) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func serves(t *testing.T, port int) {
	t.Helper()
	conn := dial(t, port)
	defer conn.Close()
	if err := echo(conn); err != nil {
		t.Fatalf("port %d does not serve: %v", port, err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

// processes are the HAProxy processes of a folder, by their command line.
func processes(t *testing.T, dir string) []int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, path := range all {
		line, err := os.ReadFile(path)
		if err == nil && bytes.Contains(line, []byte(filepath.Join(dir, "haproxy.cfg"))) && bytes.Contains(line, []byte("-W")) {
			pid, err := strconv.Atoi(strings.Split(path, "/")[2])
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestNothingRunsUntilThereIsSomethingToServe(t *testing.T) {
	p := run(t, shortDir(t), "")
	if got := p.call("GET", "/v2/info", "", ""); got.status != 200 {
		t.Fatalf("%+v", got)
	}
	if got := p.call("GET", "/v3/info", "", ""); got.status != 404 || got.body != `{"code":404,"message":"path /v3/info was not found"}`+"\n" {
		t.Fatalf("%+v", got)
	}
	base := p.raw()
	if base.Version != 1 || !strings.HasPrefix(base.Data, "# _version=1\n") {
		t.Fatalf("%+v", base)
	}
	if got := p.want(200, "GET", "/configuration/version", "").body; got != "1\n" {
		t.Fatalf("%q", got)
	}
	p.succeed(base.Data + "# nothing yet\n")
	if got := processes(t, p.dir); len(got) != 0 {
		t.Fatalf("HAProxy runs for nothing: %v", got)
	}

	port := freePort(t)
	p.succeed(front(base.Data, port, backend(t)))
	serves(t, port)
	if got := p.raw(); got.Version != 3 || !strings.HasPrefix(got.Data, "# _version=3\n#") && !strings.HasPrefix(got.Data, "# _version=3\nglobal\n") {
		t.Fatalf("%+v", got)
	}
	info, err := os.Stat(filepath.Join(p.dir, "haproxy.cfg"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info.Mode(), err)
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if got := processes(t, p.dir); len(got) != 0 {
		t.Fatalf("HAProxy still runs: %v", got)
	}
	if got := p.call("GET", services+"/configuration/version", "", ""); got.status != 503 {
		t.Fatalf("%+v", got)
	}
}

func TestABindClashIsReportedAndTheOldConfigurationLives(t *testing.T) {
	p := run(t, shortDir(t), "")
	base, port, target := p.raw().Data, freePort(t), backend(t)
	good := front(base, port, target)
	p.succeed(good)
	before := p.raw()

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	clash := taken.Addr().(*net.TCPAddr).Port
	got := p.post(front(base, clash, target))
	if got.Status != "failed" || !strings.Contains(got.Response, "Address already in use") || !strings.Contains(got.Response, strconv.Itoa(clash)) {
		t.Fatalf("%+v", got)
	}
	serves(t, port)
	after := p.raw()
	if after.Version != before.Version+2 || strings.SplitN(after.Data, "\n", 2)[1] != strings.SplitN(before.Data, "\n", 2)[1] {
		t.Fatalf("not restored: %+v", after)
	}
	other := freePort(t)
	p.succeed(front(base, other, target))
	serves(t, other)

	// The same where there is no HAProxy yet.
	fresh := run(t, shortDir(t), "")
	base = fresh.raw().Data
	got = fresh.post(front(base, clash, target))
	if got.Status != "failed" || !strings.Contains(got.Response, "Address already in use") {
		t.Fatalf("%+v", got)
	}
	if after := fresh.raw(); strings.Contains(after.Data, "frontend") || after.Version != 3 {
		t.Fatalf("not restored: %+v", after)
	}
	if got := processes(t, fresh.dir); len(got) != 0 {
		t.Fatalf("%v", got)
	}
}

// post puts text there, waits until HAProxy runs with it and gives the status.
func post(ctx context.Context, api http.Handler, text string) int {
	r := httptest.NewRequestWithContext(ctx, "POST", services+"/configuration/raw?skip_version=true&force_reload=true", strings.NewReader(text))
	r.Header.Set("Content-Type", "text/plain")
	w := httptest.NewRecorder()
	api.ServeHTTP(w, r)
	return w.Code
}
