// Package natstest gives tests a real NATS server, embedded, on a port that the kernel chose. It must never be imported
// outside of tests.
package natstest

import (
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Option changes a server.
type Option func(*server.Options)

// MaxPayload sets the largest message, headers included, in bytes; NATS' own default is 1 MiB.
func MaxPayload(n int32) Option { return func(o *server.Options) { o.MaxPayload = n } }

// New gives the URL of a fresh server that stops when the test ends.
func New(tb testing.TB, opts ...Option) string {
	tb.Helper()
	return Start(tb, opts...).URL()
}

// Server can be stopped and started by its test, on the same port.
type Server struct {
	opts *server.Options
	s    *server.Server
	url  string
}

// Start is New for tests that stop their server.
func Start(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	o := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true, MaxControlLine: 4096}
	for _, f := range opts {
		f(o)
	}
	s := &Server{opts: o}
	s.Restart(tb)
	o.Port = s.s.Addr().(*net.TCPAddr).Port
	s.url = "nats://" + s.s.Addr().String()
	tb.Cleanup(s.Stop)
	return s
}

// URL stays the same over Stop and Restart.
func (s *Server) URL() string { return s.url }

// Stop ends the server and its connections.
func (s *Server) Stop() {
	s.s.Shutdown()
	s.s.WaitForShutdown()
}

// Restart brings a stopped server back.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	srv, err := server.NewServer(s.opts.Clone())
	if err != nil {
		tb.Fatalf("natstest: %v", err)
	}
	s.s = srv
	go srv.Start() // Start returns once it listens; Stop waits for what it started
	if !srv.ReadyForConnections(10 * time.Second) {
		tb.Fatal("natstest: the server does not start")
	}
}
