// Package smtptest gives tests a real SMTP server on a port that the kernel chose, which keeps what it takes and fails as
// it is told. It must never be imported outside of tests.
package smtptest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log"
	"math/big"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/mail"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

// host is the sink's, and the name that its certificate is for.
const host = "127.0.0.1"

// Message is what the sink took, decoded.
type Message struct {
	Sender, To    string // of the envelope
	User          string // who had logged in
	Secure        bool   // whether it came over TLS
	Subject, Text string
	Header        mail.Header
	Raw           string
}

// Option changes a sink.
type Option func(*Sink)

// StartTLS offers STARTTLS, with a certificate of an authority that Roots holds.
func StartTLS() Option { return func(s *Sink) { s.startTLS = true } }

// TLS speaks TLS from the first byte.
func TLS() Option { return func(s *Sink) { s.implicit = true } }

// Auth takes mail only after a log-in, which it offers over TLS alone.
func Auth(user, password string) Option { return func(s *Sink) { s.user, s.password = user, password } }

// Hang makes connections be taken and never answered.
func Hang() Option { return func(s *Sink) { s.hang = true } }

// Sink is one server.
type Sink struct {
	tb                 testing.TB
	listener           net.Listener
	roots              *x509.CertPool
	startTLS, implicit bool
	hang               bool
	user, password     string

	mu       sync.Mutex
	taken    []Message
	arrived  chan struct{} // closed and made anew with every message
	refusals map[string]*smtp.SMTPError
	times    int
	once     *smtp.SMTPError
	cut      int
	tries    int
}

// New gives a server that stops when the test ends. Without options it speaks in clear and takes everything.
func New(tb testing.TB, opts ...Option) *Sink {
	tb.Helper()
	s := &Sink{tb: tb, arrived: make(chan struct{}), refusals: map[string]*smtp.SMTPError{}, roots: x509.NewCertPool()}
	for _, o := range opts {
		o(s)
	}
	config, err := s.certificate()
	if err != nil {
		tb.Fatalf("smtptest: %v", err)
	}
	if s.listener, err = new(net.ListenConfig).Listen(context.Background(), "tcp", host+":0"); err != nil {
		tb.Fatalf("smtptest: %v", err)
	}
	serve, end := s.answer(config)
	var done sync.WaitGroup
	done.Go(serve)
	tb.Cleanup(func() { end(); done.Wait() })
	return s
}

// answer gives what serves, and what ends that.
func (s *Sink) answer(config *tls.Config) (serve, end func()) {
	if s.hang {
		return s.swallow, func() { _ = s.listener.Close() }
	}
	server := smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) { return &session{sink: s, conn: c}, nil }))
	server.Domain = "sink.example.com"
	server.ErrorLog = log.New(io.Discard, "", 0)
	listener := s.listener
	if s.startTLS {
		server.TLSConfig = config
	}
	if s.implicit {
		listener = tls.NewListener(s.listener, config)
	}
	return func() { _ = server.Serve(listener) }, func() {
		_ = server.Close()
		_ = listener.Close() // which the server closes only once it serves
	}
}

// swallow takes connections and holds them until the listener is closed.
func (s *Sink) swallow() {
	var held []net.Conn
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			break
		}
		held = append(held, conn)
	}
	for _, conn := range held {
		_ = conn.Close()
	}
}

// Host is an IP address.
func (s *Sink) Host() string { return host }

// Port is where it listens.
func (s *Sink) Port() int { return s.listener.Addr().(*net.TCPAddr).Port }

// Roots hold the authority of the sink's certificate.
func (s *Sink) Roots() *x509.CertPool { return s.roots }

// RefuseRecipient answers code and text to mail for an address.
func (s *Sink) RefuseRecipient(to string, code int, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusals[to] = &smtp.SMTPError{Code: code, Message: text}
}

// RefuseTimes answers code and text to the next n senders.
func (s *Sink) RefuseTimes(n, code int, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times, s.once = n, &smtp.SMTPError{Code: code, Message: text}
}

// CutTimes ends the next n connections in the middle of their message.
func (s *Sink) CutTimes(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = n
}

// Tries counts the mails that were begun, taken or not.
func (s *Sink) Tries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tries
}

// Messages gives what has been taken so far, oldest first.
func (s *Sink) Messages() []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Message(nil), s.taken...)
}

// Wait gives the oldest message to an address that no Wait has given yet, and fails the test where none comes.
func (s *Sink) Wait(to string) Message {
	s.tb.Helper()
	patience := time.After(20 * time.Second)
	for {
		s.mu.Lock()
		arrived := s.arrived
		for i, m := range s.taken {
			if m.To == to {
				s.taken = append(s.taken[:i:i], s.taken[i+1:]...)
				s.mu.Unlock()
				return m
			}
		}
		s.mu.Unlock()
		select {
		case <-arrived:
		case <-patience:
			s.tb.Fatalf("smtptest: no mail to %s came", to)
		}
	}
}

// session is one connection.
type session struct {
	sink       *Sink
	conn       *smtp.Conn
	user, from string
	to         []string
}

var errLogIn = &smtp.SMTPError{Code: 530, Message: "log in first"}

func (s *session) AuthMechanisms() []string {
	if s.sink.user == "" {
		return nil
	}
	return []string{sasl.Plain}
}

func (s *session) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if user != s.sink.user || password != s.sink.password {
			// As careless as a server can be.
			return &smtp.SMTPError{Code: 535, Message: "the password " + password + " of " + user + " is wrong"}
		}
		s.user = user
		return nil
	}), nil
}

func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	s.sink.mu.Lock()
	defer s.sink.mu.Unlock()
	s.sink.tries++
	if s.sink.user != "" && s.user == "" {
		return errLogIn
	}
	if s.sink.times > 0 {
		s.sink.times--
		return s.sink.once
	}
	s.from = from
	return nil
}

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.sink.mu.Lock()
	defer s.sink.mu.Unlock()
	if refusal := s.sink.refusals[to]; refusal != nil {
		return refusal
	}
	s.to = append(s.to, to)
	return nil
}

func (s *session) Data(r io.Reader) error {
	s.sink.mu.Lock()
	cut := s.sink.cut > 0
	if cut {
		s.sink.cut--
	}
	s.sink.mu.Unlock()
	if cut {
		_ = s.conn.Conn().Close()
		return errors.New("cut")
	}
	raw, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	message, err := read(string(raw))
	if err != nil {
		return &smtp.SMTPError{Code: 554, Message: "this is no message"}
	}
	message.Sender, message.User = s.from, s.user
	_, message.Secure = s.conn.TLSConnectionState()
	s.sink.mu.Lock()
	defer s.sink.mu.Unlock()
	for _, to := range s.to {
		message.To = to
		s.sink.taken = append(s.sink.taken, message)
	}
	close(s.sink.arrived)
	s.sink.arrived = make(chan struct{})
	return nil
}

func (s *session) Reset() { s.from, s.to = "", nil }

func (s *session) Logout() error { return nil }

func read(raw string) (Message, error) {
	parsed, err := mail.ReadMessage(strings.NewReader(raw))
	if err != nil {
		return Message{}, err
	}
	subject, err := new(mime.WordDecoder).DecodeHeader(parsed.Header.Get("Subject"))
	if err != nil {
		return Message{}, err
	}
	body := parsed.Body
	if strings.EqualFold(parsed.Header.Get("Content-Transfer-Encoding"), "quoted-printable") {
		body = quotedprintable.NewReader(body)
	}
	text, err := io.ReadAll(body)
	if err != nil {
		return Message{}, err
	}
	return Message{Subject: subject, Text: strings.ReplaceAll(string(text), "\r\n", "\n"), Header: parsed.Header, Raw: raw}, nil
}

// certificate makes an authority for this sink alone, and a certificate for its address.
func (s *Sink) certificate() (*tls.Config, error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	from, until := time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "smtptest"}, NotBefore: from, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	caRaw, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return nil, err
	}
	if ca, err = x509.ParseCertificate(caRaw); err != nil {
		return nil, err
	}
	s.roots.AddCert(ca)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: host}, NotBefore: from, NotAfter: until,
		IPAddresses: []net.IP{net.ParseIP(host)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	raw, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}, nil
}
