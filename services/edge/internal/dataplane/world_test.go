package dataplane

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubebyon/kubebyon/services/edge/internal/edge"
)

// patience is for what takes milliseconds on an idle machine.
const patience = 60 * time.Second

// idOf makes the ID of a cluster that is easy to read in a configuration.
func idOf(name string) string { return "cl_" + (name + strings.Repeat("0", 20))[:20] }

func routeTo(name, domain string, targets ...netip.AddrPort) edge.Route {
	return edge.Route{ID: idOf(name), Domain: domain, Targets: targets}
}

// freePort is one that HAProxy can listen on and nobody else is given until the test ends: a socket that does not listen holds it.
func freePort(tb testing.TB) netip.AddrPort {
	tb.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { unix.Close(fd) })
	// As HAProxy does, or it could not have the port too.
	if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)); err != nil {
		tb.Fatal(err)
	}
	// On every address: some tests have HAProxy listen there.
	if err := unix.Bind(fd, &unix.SockaddrInet4{}); err != nil {
		tb.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		tb.Fatal(err)
	}
	return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(name.(*unix.SockaddrInet4).Port))
}

// behind is what stands behind HAProxy: a TLS server whose certificate holds its name.
type behind struct {
	netip.AddrPort
	name    string
	mu      sync.Mutex
	proxied []string // what the PROXY protocol said, where it is spoken
}

func serve(tb testing.TB, name string, proxyProtocol bool) *behind {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	b := &behind{AddrPort: l.Addr().(*net.TCPAddr).AddrPort(), name: name}
	config := &tls.Config{Certificates: []tls.Certificate{certificate(tb, name)}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(patience))
				if proxyProtocol && b.readProxy(conn) != nil {
					return // a health check, say
				}
				secure := tls.Server(conn, config)
				if secure.Handshake() == nil {
					io.Copy(secure, secure)
				}
			})
		}
	})
	tb.Cleanup(func() { l.Close(); all.Wait() })
	return b
}

// readProxy reads a header of version 2.
func (b *behind) readProxy(conn net.Conn) error {
	head := make([]byte, 16)
	if _, err := io.ReadFull(conn, head); err != nil {
		return err
	}
	if !bytes.Equal(head[:12], []byte("\r\n\r\n\x00\r\nQUIT\n")) {
		return errors.New("no PROXY header")
	}
	rest := make([]byte, int(head[14])<<8|int(head[15]))
	if _, err := io.ReadFull(conn, rest); err != nil {
		return err
	}
	if head[12] == 0x21 && len(rest) >= 12 {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.proxied = append(b.proxied, net.IP(rest[:4]).String())
	}
	return nil
}

func certificate(tb testing.TB, name string) tls.Certificate {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		tb.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// answered is the name of what answers at addr for an SNI; "" where the connection is closed instead.
func answeredBy(tb testing.TB, addr, sni string) string {
	tb.Helper()
	conn, name, err := open(addr, sni, nil)
	if err != nil {
		return ""
	}
	conn.Close()
	return name
}

// open makes a connection; through, if given, wraps what carries it.
func open(addr, sni string, through func(net.Conn) net.Conn) (*tls.Conn, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, "", err
	}
	if through == nil {
		through = func(c net.Conn) net.Conn { return c }
	}
	name := ""
	conn := tls.Client(through(raw), &tls.Config{ServerName: sni, InsecureSkipVerify: true, VerifyConnection: func(s tls.ConnectionState) error {
		name = s.PeerCertificates[0].Subject.CommonName
		return nil
	}})
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, "", err
	}
	return conn, name, nil
}

// want waits until an SNI leads where it should; "" is nowhere.
func want(tb testing.TB, addr, sni, name string) {
	tb.Helper()
	got := ""
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if got = answeredBy(tb, addr, sni); got == name {
			return
		}
	}
	tb.Fatalf("%s leads to %q, want %q", sni, got, name)
}

// check has HAProxy read a configuration.
func checkHAProxy(tb testing.TB, text string) error {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	if out, err := exec.CommandContext(tb.Context(), "haproxy", "-c", "-f", file).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// runHAProxy runs HAProxy with a configuration until the test ends.
func runHAProxy(tb testing.TB, text, addr string) {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command("haproxy", "-db", "-f", file)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tb.Cleanup(func() { cmd.Process.Kill(); <-ended })
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
			return
		}
		select {
		case err := <-ended:
			ended <- err
			tb.Fatalf("HAProxy ended: %v\n%s\n%s", err, &said, text)
		default:
		}
		if time.Now().After(end) {
			tb.Fatalf("HAProxy does not listen: %v", err)
		}
	}
}

// written gives the text that a layout becomes on an empty plane, its map in a file.
func textOf(tb testing.TB, s Settings, routes []edge.Route) string {
	tb.Helper()
	s, err := s.withDefaults()
	if err != nil {
		tb.Fatal(err)
	}
	l, err := plan(s, routes)
	if err != nil {
		tb.Fatal(err)
	}
	path := ""
	if l.mode == modeMap {
		path = filepath.Join(shortDir(tb), l.mapName)
		if err := os.WriteFile(path, []byte(l.mapText), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	sections, err := l.all(path)
	if err != nil {
		tb.Fatal(err)
	}
	return merge("global\n    maxconn 500\n", sections)
}

// shortDir has a name short enough for sockets in it, and with nothing that would have to be quoted.
func shortDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "dp")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func logger(tb testing.TB) *slog.Logger {
	tb.Helper()
	return slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
