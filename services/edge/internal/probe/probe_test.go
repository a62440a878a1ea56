package probe

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// certificate is for names, and signed by itself, as nobody's trust is asked.
func certificate(t *testing.T, names ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: names, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// serve answers each connection by what, and gives the address.
func serve(t *testing.T, what func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { defer func() { _ = conn.Close() }(); what(conn) }()
		}
	}()
	return listener.Addr().String()
}

func TestProbe(t *testing.T) {
	mine := certificate(t, "a.example.com")
	asked := make(chan string, 1)
	shake := func(cert tls.Certificate) func(net.Conn) {
		return func(c net.Conn) {
			s := tls.Server(c, &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
				select {
				case asked <- hello.ServerName:
				default:
				}
				return &cert, nil
			}})
			_ = s.Handshake()
			_, _ = s.Read(make([]byte, 1)) // until the other side has seen all of it
		}
	}
	closed := serve(t, func(net.Conn) {})
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = nobody.Close()
	for name, c := range map[string]struct{ addr, code string }{
		"the domain's own":      {serve(t, shake(mine)), ""},
		"another certificate":   {serve(t, shake(certificate(t, "b.example.com"))), "certificate_mismatch"},
		"a certificate of none": {serve(t, shake(certificate(t))), "certificate_mismatch"},
		"closed at once":        {closed, "route_refused"},
		"no listener":           {nobody.Addr().String(), "edge_closed"},
		"no TLS": {serve(t, func(c net.Conn) {
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_, _ = c.Read(make([]byte, 1000))
		}), "route_broken"},
		"silence": {serve(t, func(c net.Conn) { _, _ = c.Read(make([]byte, 1000)); time.Sleep(time.Hour) }), "route_silent"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		if c.code == "route_silent" {
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
		}
		err := New(c.addr, 0).Probe(ctx, "a.example.com")
		cancel()
		f := fault.From(err)
		switch {
		case c.code == "" && err != nil, c.code != "" && (f == nil || f.Code != c.code || f.Kind != fault.Unavailable || f.Action == ""):
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := <-asked; got != "a.example.com" {
		t.Errorf("asked for %q", got)
	}
}

func TestProbesAreSpread(t *testing.T) {
	prober := New("127.0.0.1:1", 1)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if f := fault.From(prober.Probe(ctx, "a.example.com")); f.Code != "edge_closed" {
		t.Errorf("the first: %v", f)
	}
	if f := fault.From(prober.Probe(ctx, "a.example.com")); f.Code != "route_silent" {
		t.Errorf("the second waits for its turn: %v", f)
	}
}
