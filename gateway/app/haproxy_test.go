package app_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/pkg/test/acmetest"
)

// haproxy leads the console's name to the gateway's TLS port as the edge does, and gives where it listens.
func haproxy(t *testing.T, upstream string) string {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	put(t, file, fmt.Appendf(nil, `global
    maxconn 100
defaults
    mode tcp
    timeout connect 5s
    timeout client 75s
    timeout server 75s
frontend edge
    bind %s
    tcp-request inspect-delay 5s
    tcp-request content reject if !{ req.ssl_hello_type 1 } { req.len gt 0 }
    tcp-request content accept if { req.ssl_hello_type 1 }
    use_backend console if { req.ssl_sni -i %s }
backend console
    server g1 %s send-proxy-v2 check inter 100ms
`, address, console, upstream))
	command := exec.CommandContext(context.Background(), "haproxy", "-db", "-f", file) //nolint:gosec // our own file
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(os.Interrupt)
		var ended *exec.ExitError
		if err := command.Wait(); err != nil && !errors.As(err, &ended) {
			t.Errorf("%v: %s", err, &out)
		}
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			_ = conn.Close()
			return address
		}
		if time.Now().After(deadline) {
			t.Fatalf("HAProxy never listened: %v\n%s", err, &out)
		}
	}
}

// A real HAProxy tells the gateway who connects, passes the ACME server's challenge by the name in it, and checks the TLS port without harm.
func TestBehindHAProxy(t *testing.T) {
	listener, _ := listening(t)
	edge := haproxy(t, listener.Addr().String())
	_, port, _ := net.SplitHostPort(edge)
	number, err := net.LookupPort("tcp", port)
	if err != nil {
		t.Fatal(err)
	}
	acme := acmetest.Start(t, acmetest.Options{TLSPort: number})
	w := start(t, ordering(t, listener, acme.URL, acme.CA, nil))
	w.eventually(func() bool { _, err := w.verified(t, acme, edge); return err == nil })

	// This machine has many addresses: HAProxy itself comes from another one than the client.
	jar, _ := cookiejar.New(nil)
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 77)}}
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: acme.Roots},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", edge) }}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Jar: jar, Transport: transport, Timeout: 30 * time.Second}
	w.overTLS(func() {
		w.callAs(client, "POST", login, "", fmt.Sprintf(`{"email":%q,"password":%q}`, adminEmail, adminPassword), "X-Forwarded-For", "203.0.113.9").expect(t, 200, "")
		w.callAs(client, "GET", clusters, "", "").expect(t, 200, "")
	})
	if got := w.call("GET", auditLog, "?client=127.0.0.77&action=session.open", ""); strings.Count(got.text, `"session.open"`) != 1 {
		t.Error(got.text)
	}
	if got := w.call("GET", auditLog, "?client=203.0.113.9", ""); strings.Contains(got.text, `"session.open"`) {
		t.Error(got.text)
	}
}
