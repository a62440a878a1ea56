// Package acmetest runs a real ACME server for tests: Pebble, with a resolver that leads every name to this machine. It must never
// be part of a process.
package acmetest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"
	"go.uber.org/goleak"
)

// Options of a Server.
type Options struct {
	Addr    string        // where it listens; empty: 127.0.0.1, at a port of the kernel's
	TLSPort int           // where it finds who answers for a name
	Life    time.Duration // of the certificates that it issues; 0: Pebble's own
	Self    Identity      // from NewIdentity, for who has to know it before the server is there; zero: a new one
}

// Identity is a server's own certificate.
type Identity struct {
	CA   []byte // PEM: who signed it
	pair tls.Certificate
}

// Server is an ACME server.
type Server struct {
	URL   string         // of its directory
	CA    []byte         // PEM: who signed its own certificate
	Roots *x509.CertPool // who signs what it issues
	// RootsPEM is the same as text.
	RootsPEM []byte

	orders atomic.Int64
	gate   sync.RWMutex
}

// Start runs one until the test ends. It rejects some good nonces, as Pebble does, so that clients try again.
func Start(tb testing.TB, o Options) *Server {
	tb.Helper()
	tb.Setenv("PEBBLE_VA_NOSLEEP", "1")
	quiet := log.New(io.Discard, "", 0)
	s := &Server{Roots: x509.NewCertPool()}
	rows := db.NewMemoryStore()
	issuer := ca.New(quiet, rows, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {Description: "default", ValidityPeriod: uint64(o.Life / time.Second)}})
	s.Roots.AddCert(issuer.GetRootCert(0).Cert)
	s.RootsPEM = issuer.GetRootCert(0).PEM()
	front := wfe.New(quiet, rows, va.New(quiet, 0, o.TLSPort, true, resolver(tb), rows), issuer, []string{"acme.test"}, true, false, 1, 1)
	pebble := front.Handler()

	address := o.Addr
	if address == "" {
		address = "127.0.0.1:0"
	}
	listener, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", address)
	if err != nil {
		tb.Fatal(err)
	}
	s.URL = "https://" + listener.Addr().String() + wfe.DirectoryPath
	if o.Self.CA == nil {
		o.Self = NewIdentity(tb)
	}
	s.CA = o.Self.CA
	server := &http.Server{ReadHeaderTimeout: time.Minute, ErrorLog: quiet, TLSConfig: &tls.Config{Certificates: []tls.Certificate{o.Self.pair}, MinVersion: tls.VersionTLS12},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasPrefix(r.URL.Path, "/finalize-order/"):
				s.orders.Add(1)
			case strings.HasPrefix(r.URL.Path, "/chalZ/"):
				s.gate.RLock()
				s.gate.RUnlock() // whoever holds it lets nobody pass
			}
			pebble.ServeHTTP(w, r)
		})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.ServeTLS(listener, "", "") }()
	tb.Cleanup(func() { _ = server.Close(); <-done })
	return s
}

// Orders is how many certificates were asked for, as far as the proofs had been accepted.
func (s *Server) Orders() int { return int(s.orders.Load()) }

// Hold lets no challenge begin until the function that it gives is called.
func (s *Server) Hold() (release func()) {
	s.gate.Lock()
	return sync.OnceFunc(s.gate.Unlock)
}

// Leaks are goroutines that Pebble and its clients' library never end.
func Leaks() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/letsencrypt/pebble/v2/va.VAImpl.processTasks"),
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.(*RingBufferRateLimiter).loop"),
	}
}

// resolver answers every question for an IPv4 address with 127.0.0.1.
func resolver(tb testing.TB) string {
	tb.Helper()
	listener, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	server := &dns.Server{Listener: listener, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		answer := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			answer.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.IPv4(127, 0, 0, 1)}}
		}
		_ = w.WriteMsg(answer)
	})}
	started, done := make(chan struct{}), make(chan struct{})
	server.NotifyStartedFunc = func() { close(started) }
	go func() { defer close(done); _ = server.ActivateAndServe() }()
	<-started
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = server.ShutdownContext(ctx)
		<-done
	})
	return listener.Addr().String()
}

// NewIdentity makes one for 127.0.0.1.
func NewIdentity(tb testing.TB) Identity {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "acme.test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	return Identity{CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), pair: tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}}
}
