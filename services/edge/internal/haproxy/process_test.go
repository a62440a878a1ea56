package haproxy_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/haproxytech/client-native/v5/models"

	"github.com/kubebyon/kubebyon/services/edge/internal/haproxy"
)

// embedded is the variable that makes this test binary a process with a Plane in it, over the folder that it names.
const embedded = "KUBEBYON_TEST_EMBEDDED_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(embedded); dir != "" {
		os.Exit(embed(dir))
	}
	os.Exit(m.Run())
}

// embed runs a Plane until SIGTERM. It posts what comes on its standard input, up to the end, and says when HAProxy runs with it.
func embed(dir string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	p, err := haproxy.New(haproxy.Options{Dir: dir, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Grace: 200 * time.Millisecond})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() {
		text, err := io.ReadAll(os.Stdin)
		if err != nil {
			return
		}
		status := post(ctx, p.Handler(), string(text))
		fmt.Fprintln(os.Stdout, status)
	}()
	if err := p.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// tlsBackend is a TLS server that sends back what it gets, and its address.
func tlsBackend(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"a.example"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS13})
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

func dialTLS(t *testing.T, port int) net.Conn {
	t.Helper()
	conn, err := tls.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port), &tls.Config{ServerName: "a.example", InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestAReloadDropsNoConnection(t *testing.T) {
	p := run(t, shortDir(t), "")
	port, target := freePort(t), tlsBackend(t)
	text := front(p.raw().Data, port, target)
	p.succeed(text)
	var live []net.Conn
	for range 20 {
		live = append(live, dialTLS(t, port))
	}
	// Others come and go while it reloads: each must get through.
	stop, coming := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				coming <- nil
				return
			default:
			}
			conn, err := tls.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port), &tls.Config{ServerName: "a.example", InsecureSkipVerify: true})
			if err == nil {
				err = echo(conn)
				conn.Close()
			}
			if err != nil {
				coming <- err
				return
			}
		}
	}()
	for i := range 3 {
		for n, conn := range live {
			if err := echo(conn); err != nil {
				t.Fatalf("connection %d before reload %d: %v", n, i, err)
			}
		}
		p.succeed(text + fmt.Sprintf("backend other%d from d\n", i))
	}
	close(stop)
	if err := <-coming; err != nil {
		t.Fatalf("a new connection during a reload: %v", err)
	}
	for n, conn := range live {
		if err := echo(conn); err != nil {
			t.Fatalf("connection %d: %v", n, err)
		}
	}
}

// infos are the workers alive; the first takes new connections.
func (p *plane) infos() models.ProcessInfos {
	p.t.Helper()
	got := p.call("GET", services+"/runtime/info", "", "")
	if got.status != 200 {
		return nil // HAProxy is being started
	}
	return decode[models.ProcessInfos](p.t, got.body)
}

func (p *plane) worker() int {
	p.t.Helper()
	infos := p.infos()
	if len(infos) == 0 || infos[0].Info == nil {
		p.t.Fatalf("no worker: %+v", infos)
	}
	return int(*infos[0].Info.Pid)
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func reaches(port int) bool {
	conn, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		return false
	}
	defer conn.Close()
	return echo(conn) == nil
}

func TestAHAProxyThatIsKilledIsStartedAgain(t *testing.T) {
	p := run(t, shortDir(t), "")
	port := freePort(t)
	p.succeed(front(p.raw().Data, port, backend(t)))
	before := p.raw()
	for _, what := range []string{"worker", "master", "both"} {
		pids := processes(t, p.dir)
		if len(pids) != 2 {
			t.Fatalf("%v", pids)
		}
		old := p.worker()
		for _, pid := range pids {
			if what == "both" || (pid == old) == (what == "worker") {
				kill(t, pid)
			}
		}
		eventually(t, "another "+what, func() bool {
			infos := p.infos()
			return len(infos) == 1 && infos[0].Info != nil && int(*infos[0].Info.Pid) != old && reaches(port)
		})
		eventually(t, "the rest of the old one is gone", func() bool { return len(processes(t, p.dir)) == 2 })
		if p.raw() != before {
			t.Fatalf("the configuration is another: %+v", p.raw())
		}
		p.succeed(before.Data)
		before = p.raw()
		serves(t, port)
		eventually(t, "one worker", func() bool { return len(processes(t, p.dir)) == 2 })
	}
}

// embedding is another process with a Plane over dir, which has posted text.
func embedding(t *testing.T, dir, text string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), embedded+"="+dir)
	cmd.Stdin, cmd.Stderr = strings.NewReader(text), t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		for _, pid := range processes(t, dir) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "201\n" {
		t.Fatalf("the other process: %q %v", line, err)
	}
	return cmd
}

func TestTheNextProcessTakesOver(t *testing.T) {
	dir := shortDir(t)
	port := freePort(t)
	target := tlsBackend(t)
	probe := run(t, shortDir(t), "")
	text := strings.ReplaceAll(front(probe.raw().Data, port, target), probe.dir, dir)
	first := embedding(t, dir, text)
	var live []net.Conn
	for range 20 {
		live = append(live, dialTLS(t, port))
	}
	pids := processes(t, dir)
	kill(t, -first.Process.Pid) // with all that is in its group
	_ = first.Wait()
	for n, conn := range live {
		if err := echo(conn); err != nil {
			t.Fatalf("connection %d after the process was killed: %v", n, err)
		}
	}

	p := run(t, dir, "")
	if got := p.raw(); got.Version != 2 || !strings.HasSuffix(got.Data, front("", port, target)) {
		t.Fatalf("%+v", got)
	}
	eventually(t, "it is taken over", func() bool { return len(p.infos()) == 1 })
	if now := processes(t, dir); fmt.Sprint(now) != fmt.Sprint(pids) {
		t.Fatalf("processes %v, %v before", now, pids)
	}
	p.succeed(p.raw().Data)
	for n, conn := range live {
		if err := echo(conn); err != nil {
			t.Fatalf("connection %d after the next process has reloaded: %v", n, err)
		}
	}
	serves443 := dialTLS(t, port)
	if err := echo(serves443); err != nil {
		t.Fatal(err)
	}
	// Killed, an adopted master is started again too.
	old := p.worker()
	for _, pid := range processes(t, dir) {
		kill(t, pid)
	}
	eventually(t, "another one", func() bool {
		infos := p.infos()
		return len(infos) == 1 && infos[0].Info != nil && int(*infos[0].Info.Pid) != old
	})
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if now := processes(t, dir); len(now) != 0 {
		t.Fatalf("left: %v", now)
	}
}

// The file that a killed process had written, and HAProxy not yet taken, is live after the next start.
func TestTheNextProcessFinishesAChange(t *testing.T) {
	dir := shortDir(t)
	port, later, target := freePort(t), freePort(t), backend(t)
	probe := run(t, shortDir(t), "")
	base := strings.ReplaceAll(probe.raw().Data, probe.dir, dir)
	first := embedding(t, dir, front(base, port, target))
	kill(t, first.Process.Pid)
	_ = first.Wait()
	if err := os.WriteFile(filepath.Join(dir, "haproxy.cfg"), []byte("# _version=3\n"+front(base, later, target)), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "")
	eventually(t, "the new port", func() bool { return reaches(later) })
}

func TestAFolderHasOnePlane(t *testing.T) {
	dir := shortDir(t)
	run(t, dir, "").raw()
	second, err := haproxy.New(haproxy.Options{Dir: dir, Log: slog.New(slog.DiscardHandler), Grace: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Fatalf("%v", err)
	}
	if _, err := haproxy.New(haproxy.Options{Dir: filepath.Join(dir, strings.Repeat("x", 100)), Log: slog.New(slog.DiscardHandler)}); err == nil {
		t.Fatal("a folder with too long a name")
	}
}

func TestManyReloadsLeaveNothing(t *testing.T) {
	p := run(t, shortDir(t), "")
	port := freePort(t)
	text := front(p.raw().Data, port, backend(t))
	p.succeed(text)
	p.succeed(text)
	descriptors := func() int {
		t.Helper()
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := descriptors()
	for range 15 {
		p.succeed(text)
		p.want(200, "GET", "/configuration/backends", "")
		p.want(200, "GET", "/stats/native", "")
	}
	eventually(t, "as many processes as before", func() bool { return len(processes(t, p.dir)) == 2 })
	eventually(t, "as many descriptors as before", func() bool { return descriptors() <= before+2 })
	if left := children(t); len(left) != 1 {
		t.Fatalf("children: %v", left)
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if left := children(t); len(left) != 0 {
		t.Fatalf("children: %v", left)
	}
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || strings.Contains(e.Name(), "candidate") {
			t.Errorf("left: %s", e.Name())
		}
	}
}

// children are the processes whose parent we are, zombies too.
func children(t *testing.T) []string {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, path := range tasks {
		if raw, err := os.ReadFile(path); err == nil {
			out = append(out, strings.Fields(string(raw))...)
		}
	}
	return out
}
