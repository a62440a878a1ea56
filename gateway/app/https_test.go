package app_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/kubebyon/kubebyon/gateway/app"
)

const console = "console.example.com"

// authority signs certificates for tests.
type authority struct {
	pool *x509.CertPool
	pem  []byte
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(tb testing.TB) *authority {
	tb.Helper()
	key := newKey(tb)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour * 24 * 365),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	a := &authority{pool: x509.NewCertPool(), key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})}
	if a.cert, err = x509.ParseCertificate(raw); err != nil {
		tb.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	return a
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// issue gives a pair in PEM that is good for life from now.
func (a *authority) issue(tb testing.TB, life time.Duration, names ...string) (certificate, key []byte, serial *big.Int) {
	tb.Helper()
	secret := newKey(tb)
	serial, _ = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	template := &x509.Certificate{SerialNumber: serial, DNSNames: nil, NotBefore: time.Now().Add(-24 * time.Hour * 90), NotAfter: time.Now().Add(life), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, name := range names {
		if address := net.ParseIP(name); address != nil {
			template.IPAddresses = append(template.IPAddresses, address)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.cert, secret.Public(), a.key)
	if err != nil {
		tb.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		tb.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), serial
}

func put(tb testing.TB, path string, text []byte) {
	tb.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		tb.Fatal(err)
	}
}

// pairFiles are the two files of a gateway's certificate.
type pairFiles struct{ certificate, key string }

func newPairFiles(tb testing.TB) pairFiles {
	tb.Helper()
	dir := tb.TempDir()
	return pairFiles{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")}
}

// behindTLS gives the gateway a TLS port with a certificate of a, for domain where that is not empty.
func (a *authority) behindTLS(tb testing.TB, domain string) wish {
	tb.Helper()
	files := newPairFiles(tb)
	certificate, key, _ := a.issue(tb, 90*24*time.Hour, console, "other.example.com", "127.0.0.1")
	put(tb, files.certificate, certificate)
	put(tb, files.key, key)
	return files.wish(domain)
}

func (f pairFiles) wish(domain string) wish {
	return func(env map[string]string, _ *world) {
		env["KUBEBYON_HTTPS_ADDR"], env["KUBEBYON_TLS_CERT_FILE"], env["KUBEBYON_TLS_KEY_FILE"] = "127.0.0.1:0", f.certificate, f.key
		if domain != "" {
			env["KUBEBYON_CONSOLE_DOMAIN"] = domain
		}
	}
}

// dialTLS connects to the gateway's TLS port as server, after it has sent first.
func (w *world) dialTLS(first []byte, config *tls.Config) (*tls.Conn, error) {
	conn, err := net.DialTimeout("tcp", w.secure, 10*time.Second)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Write(first); err != nil {
		_ = conn.Close()
		return nil, err
	}
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(w.t.Context()); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secured, nil
}

// secureBrowser finds every name at the gateway's TLS port.
func (w *world) secureBrowser(a *authority, first []byte) *http.Client {
	jar, _ := cookiejar.New(nil)
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: a.pool, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", w.secure)
			if err == nil && len(first) > 0 {
				_, err = conn.Write(first)
			}
			return conn, err
		}}
	w.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Jar: jar, Transport: transport, Timeout: 30 * time.Second}
}

// overTLS lets calls go to the TLS port.
func (w *world) overTLS(do func()) {
	plain := w.url
	w.url = "https://" + console
	defer func() { w.url = plain }()
	do()
}

// The API is served over HTTP/2 and HTTP/1.1 with TLS 1.2 and later; cookies are secure there, and only the console's own name is told to
// stay with TLS.
func TestTLSPort(t *testing.T) {
	a := newAuthority(t)
	w := start(t, a.behindTLS(t, console))
	browser := w.secureBrowser(a, nil)
	body := fmt.Sprintf(`{"email":%q,"password":%q}`, adminEmail, adminPassword)
	w.overTLS(func() {
		in := w.callAs(browser, "POST", login, "", body)
		if cookie := in.header.Get("Set-Cookie"); in.status != 200 || !strings.Contains(cookie, "; Secure") || !strings.Contains(cookie, "; HttpOnly") {
			t.Errorf("%d %q", in.status, cookie)
		}
		if got := in.header.Get("Strict-Transport-Security"); got != "max-age=31536000" {
			t.Errorf("Strict-Transport-Security: %q", got)
		}
		w.callAs(browser, "GET", clusters, "", "").expect(t, 200, "")
		if out := w.callAs(browser, "POST", "/api/auth/logout", "", ""); !strings.Contains(out.header.Get("Set-Cookie"), "; Secure") {
			t.Errorf("%d %v", out.status, out.header)
		}
		w.callAs(browser, "POST", login, "", body, "Origin", "https://"+console, "Sec-Fetch-Site", "same-origin").expect(t, 200, "")
		w.callAs(browser, "POST", login, "", body, "Origin", "https://other.example.com", "Sec-Fetch-Site", "same-site").expect(t, 403, "cross_origin")
	})
	plain := w.call("POST", login, "", body)
	if cookie := plain.header.Get("Set-Cookie"); plain.status != 200 || strings.Contains(cookie, "; Secure") || plain.header.Get("Strict-Transport-Security") != "" {
		t.Errorf("%d %v", plain.status, plain.header)
	}

	response, err := browser.Get("https://" + console + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.ProtoMajor != 2 || response.TLS.Version != tls.VersionTLS13 {
		t.Errorf("HTTP/%d with TLS %x", response.ProtoMajor, response.TLS.Version)
	}
	for version, served := range map[uint16]bool{tls.VersionTLS10: false, tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		conn, err := w.dialTLS(nil, &tls.Config{RootCAs: a.pool, ServerName: console, MinVersion: version, MaxVersion: version, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}}) //nolint:gosec // that is the point
		if (err == nil) != served {
			t.Errorf("TLS %x: %v", version, err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
	if !strings.Contains(w.log.String(), "https listening") {
		t.Error("the log does not say where")
	}
}

// Without the console's domain nobody is told to stay with TLS, and any name is served that the handshake is for.
func TestTLSPortWithoutDomain(t *testing.T) {
	a := newAuthority(t)
	w := prepare(t, withoutServices, a.behindTLS(t, ""))
	browser := w.secureBrowser(a, nil)
	for _, host := range []string{console, "other.example.com", "127.0.0.1"} {
		response, err := browser.Get("https://" + host + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK || response.Header.Get("Strict-Transport-Security") != "" {
			t.Errorf("%s: %d %v", host, response.StatusCode, response.Header)
		}
	}
}

// ask sends one request over a handshake for server with that Host header.
func (w *world) ask(t *testing.T, a *authority, server, hostLine string) *http.Response {
	t.Helper()
	conn, err := w.dialTLS(nil, &tls.Config{RootCAs: a.pool, ServerName: server, InsecureSkipVerify: true}) //nolint:gosec // some names are none
	if err != nil {
		t.Fatalf("%q: %v", server, err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintf(conn, "GET /healthz HTTP/1.1\r\n%s\r\n", hostLine); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%q, %q: %v", server, hostLine, err)
	}
	text, _ := io.ReadAll(response.Body)
	_ = response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(text))
	return response
}

// A connection that was made for one name serves no other.
func TestMisdirectedRequests(t *testing.T) {
	a := newAuthority(t)
	w := start(t, a.behindTLS(t, console))
	for _, c := range []struct {
		server, host string
		status       int
	}{
		{console, "Host: console.example.com\r\n", 200},
		{console, "Host: console.example.com:443\r\n", 200},
		{console, "Host: CONSOLE.example.com.\r\n", 200},
		{strings.ToUpper(console), "Host: console.example.com\r\n", 200},
		{console, "Host: other.example.com\r\n", 421},
		{"other.example.com", "Host: console.example.com\r\n", 421},
		{"other.example.com", "Host: other.example.com\r\n", 421},
		{"", "Host: console.example.com\r\n", 421},
		{console, "Host: 127.0.0.1\r\n", 421},
		{console, "Host: [::1]:443\r\n", 421},
		{console, "Host: \r\n", 421},
		{console, "Host: console.example.com:0x1bb\r\n", 421},
		{console, "X: y\r\n", 400},
		{console, "Host: console.example.com\r\nHost: console.example.com\r\n", 400},
		{console, "Host: console.example.com\r\nX-Forwarded-Host: other.example.com\r\nForwarded: host=other.example.com\r\n", 200},
	} {
		response := w.ask(t, a, c.server, c.host)
		text, _ := io.ReadAll(response.Body)
		if response.StatusCode != c.status || (c.status == 421) != strings.Contains(string(text), `"code":"misdirected_request"`) {
			t.Errorf("%q, %q: %d %s", c.server, c.host, response.StatusCode, text)
		}
		if c.status == 421 && (response.Header.Get("Strict-Transport-Security") != "" || !response.Close || response.Header.Get("X-Content-Type-Options") != "nosniff") {
			t.Errorf("%q, %q: %v", c.server, c.host, response.Header)
		}
	}
	// A request's own address counts before its header.
	conn, err := w.dialTLS(nil, &tls.Config{RootCAs: a.pool, ServerName: console})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn, "GET https://other.example.com/healthz HTTP/1.1\r\nHost: %s\r\n\r\n", console)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("another address in the request's line: %d", response.StatusCode)
	}
	// HTTP/2, as a browser uses one connection for two names.
	browser := w.secureBrowser(a, nil)
	for host, status := range map[string]int{"other.example.com": 421, console: 200} {
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+console+"/healthz", nil)
		request.Host = host
		response, err := browser.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != status || response.ProtoMajor != 2 {
			t.Errorf("%s: %d over HTTP/%d", host, response.StatusCode, response.ProtoMajor)
		}
	}
	// The plain listener serves whatever name a proxy or a script calls it.
	w.call("GET", "/healthz", "", "").expect(t, 200, "")
	// A name with the root's dot never gets as far as a request, nor does what is no TLS.
	for _, bad := range [][]byte{[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), []byte("PROXY UNKNOWN\r\n"), bytes.Repeat([]byte{0}, 600), hello(t, console+".")} {
		conn, err := net.Dial("tcp", w.secure)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = conn.Write(bad)
		answer, _ := io.ReadAll(conn)
		_ = conn.Close()
		if bytes.Contains(answer, []byte(" 200 ")) || (len(answer) > 0 && answer[0] != 21 && !bytes.Contains(answer, []byte(" 400 "))) {
			t.Errorf("%.40q is answered %q", bad, answer)
		}
	}
}

// hello gives a ClientHello with that very name: crypto/tls itself would tidy it up.
func hello(t *testing.T, name string) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer func() { _ = client.Close(); _ = server.Close() }()
	standIn := strings.Repeat("a", len(name))
	go func() { _ = tls.Client(client, &tls.Config{ServerName: standIn, InsecureSkipVerify: true}).Handshake() }() //nolint:gosec // it ends with the pipe
	first := make([]byte, 16<<10)
	n, err := server.Read(first)
	if err != nil || !bytes.Contains(first[:n], []byte(standIn)) {
		t.Fatalf("%v: %q", err, first[:n])
	}
	return bytes.Replace(first[:n], []byte(standIn), []byte(name), 1)
}

// shown is the serial number of the certificate that a handshake gets.
func (w *world) shown() *big.Int {
	conn, err := w.dialTLS(nil, &tls.Config{ServerName: console, InsecureSkipVerify: true}) //nolint:gosec // it is looked at
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber
}

// A pair that is replaced is taken without a restart; what is half, mismatched or for another name is logged, and the old pair stays.
func TestCertificateIsReplaced(t *testing.T) {
	a, files := newAuthority(t), newPairFiles(t)
	certificate, key, first := a.issue(t, 90*24*time.Hour, console)
	put(t, files.certificate, certificate)
	put(t, files.key, key)
	w := prepare(t, withoutServices, files.wish(console))
	if got := w.shown(); got == nil || got.Cmp(first) != 0 {
		t.Fatalf("%x, want %x", got, first)
	}
	otherCertificate, otherKey, second := a.issue(t, 90*24*time.Hour, console)
	strange, strangeKey, _ := a.issue(t, 90*24*time.Hour, "elsewhere.example.com")
	for name, c := range map[string]struct {
		certificate, key []byte
		said             string
	}{
		"half a certificate":      {otherCertificate[:len(otherCertificate)/2], otherKey, "holds no certificate"},
		"the key comes later":     {otherCertificate, key, "holds the key of another certificate"},
		"half a key":              {otherCertificate, otherKey[:len(otherKey)/2], "holds no private key"},
		"an empty file":           {nil, otherKey, "holds no certificate"},
		"a certificate elsewhere": {strange, strangeKey, "is not for " + console},
		"the files swapped":       {otherKey, otherCertificate, "holds no certificate"},
	} {
		before := strings.Count(w.log.String(), "certificate's files cannot be used")
		put(t, files.certificate, c.certificate)
		put(t, files.key, c.key)
		w.eventually(func() bool {
			lines := strings.Split(w.log.String(), "certificate's files cannot be used")
			return len(lines) > before+1 && strings.Contains(lines[len(lines)-1], c.said)
		})
		if got := w.shown(); got == nil || got.Cmp(first) != 0 {
			t.Fatalf("%s: %x, want %x", name, got, first)
		}
	}
	if err := os.Remove(files.key); err != nil {
		t.Fatal(err)
	}
	w.eventually(func() bool { return strings.Contains(w.log.String(), "does not exist") })
	put(t, files.certificate, otherCertificate)
	put(t, files.key, otherKey)
	w.eventually(func() bool { got := w.shown(); return got != nil && got.Cmp(second) == 0 })
	w.eventually(func() bool { return strings.Contains(w.log.String(), "certificate replaced from its files") })
	if log := w.log.String(); strings.Contains(log, "PRIVATE") || strings.Contains(log, "expires soon") {
		t.Errorf("%s", log)
	}
	// Once for each state of the files, not at each look.
	if n := strings.Count(w.log.String(), "certificate's files cannot be used"); n > 20 {
		t.Errorf("%d lines about it", n)
	}
}

func TestCertificateExpiry(t *testing.T) {
	a := newAuthority(t)
	for life, said := range map[time.Duration]string{6 * 24 * time.Hour: "the certificate expires soon", -time.Hour: "the certificate has expired"} {
		files := newPairFiles(t)
		certificate, key, serial := a.issue(t, life, console)
		put(t, files.certificate, certificate)
		put(t, files.key, key)
		w := prepare(t, withoutServices, files.wish(console))
		w.eventually(func() bool { return strings.Contains(w.log.String(), said) })
		if got := w.shown(); got == nil || got.Cmp(serial) != 0 {
			t.Errorf("%x, want %x", got, serial)
		}
		certificate, key, serial = a.issue(t, 90*24*time.Hour, console)
		put(t, files.certificate, certificate)
		put(t, files.key, key)
		w.eventually(func() bool { got := w.shown(); return got != nil && got.Cmp(serial) == 0 })
		if n := strings.Count(w.log.String(), said); n != 1 {
			t.Errorf("it is said %d times: %s", n, said)
		}
	}
}

func proxyHeader(t *testing.T, source string) []byte {
	t.Helper()
	text, err := (&proxyproto.Header{Version: 2, Command: proxyproto.PROXY, TransportProtocol: proxyproto.TCPv4,
		SourceAddr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(source)), DestinationAddr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:443"))}).Format()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The edge's clients are counted and kept as themselves, whatever they write into headers.
func TestClientsBehindTheEdge(t *testing.T) {
	a := newAuthority(t)
	w := start(t, a.behindTLS(t, console), with("KUBEBYON_AUTH_RATE_LIMIT_BURST", "3"), with("KUBEBYON_TRUSTED_PROXY_CIDRS", "127.0.0.0/8,10.0.0.0/8"))
	w.standStill()
	wrong := `{"email":"nobody@example.com","password":"not it at all"}`
	w.overTLS(func() {
		first, second := w.secureBrowser(a, proxyHeader(t, "198.51.100.7:4711")), w.secureBrowser(a, proxyHeader(t, "198.51.100.8:4711"))
		for i := range 3 {
			// Captchas may be asked for; what counts is that it is no limit yet.
			if got := w.callAs(first, "POST", login, "", wrong, "X-Forwarded-For", fmt.Sprintf("203.0.113.%d", i), "X-Real-IP", "203.0.113.9"); got.status != 401 {
				t.Errorf("%d %s", got.status, got.text)
			}
		}
		w.callAs(first, "POST", login, "", wrong, "X-Forwarded-For", "203.0.113.77").expect(t, 429, "rate_limited")
		if got := w.callAs(second, "POST", login, "", wrong); got.status != 401 {
			t.Errorf("another client: %d %s", got.status, got.text)
		}
	})
	for client, want := range map[string]int{"198.51.100.7": 3, "198.51.100.8": 1, "203.0.113.1": 0, "203.0.113.9": 0} {
		if got := w.call("GET", auditLog, "?client="+client+"&action=session.open", ""); strings.Count(got.text, `"session.open"`) != want {
			t.Errorf("%s: %s", client, got.text)
		}
	}
	if !strings.Contains(w.log.String(), "client=198.51.100.7") || strings.Contains(w.log.String(), "client=203.0.113") {
		t.Error("the log has another client")
	}
}

type elsewhere struct {
	net.Listener
	peer net.Addr
}

type elsewhereConn struct {
	net.Conn
	peer net.Addr
}

func (e elsewhere) Accept() (net.Conn, error) {
	conn, err := e.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return elsewhereConn{conn, e.peer}, nil
}

func (c elsewhereConn) RemoteAddr() net.Addr { return c.peer }

// comingFrom lets all connections to the TLS port come from peer.
func comingFrom(peer string) wish {
	return func(_ map[string]string, w *world) {
		w.peer = func(l net.Listener) net.Listener {
			return elsewhere{l, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(peer))}
		}
	}
}

// Who is no trusted proxy speaks for nobody: with a header there is no connection, and without one it is itself.
func TestStrangersSpeakForNobody(t *testing.T) {
	a := newAuthority(t)
	for peer, trusted := range map[string]bool{"192.0.2.66:5": false, "10.1.2.3:5": true, "[2001:db8::66]:5": false} {
		w := start(t, a.behindTLS(t, console), with("KUBEBYON_TRUSTED_PROXY_CIDRS", "10.0.0.0/8"), comingFrom(peer))
		itself := netip.MustParseAddrPort(peer).Addr().String()
		client := itself
		conn, err := w.dialTLS(proxyHeader(t, "198.51.100.7:4711"), &tls.Config{RootCAs: a.pool, ServerName: console})
		if (err == nil) != trusted {
			t.Errorf("%s: %v", peer, err)
		}
		if err == nil {
			client = "198.51.100.7"
			_ = conn.Close()
		}
		w.overTLS(func() {
			w.callAs(w.secureBrowser(a, nil), "POST", login, "", `{"email":"a@example.com","password":"not it at all"}`).expect(t, 401, "wrong_credentials")
			if trusted {
				w.callAs(w.secureBrowser(a, proxyHeader(t, "198.51.100.7:4711")), "POST", login, "", `{"email":"a@example.com","password":"not it at all"}`).expect(t, 401, "wrong_credentials")
			}
		})
		for _, address := range []string{itself, client} {
			if got := w.call("GET", auditLog, "?client="+address+"&action=session.open", ""); strings.Count(got.text, `"session.open"`) != 1 {
				t.Errorf("%s: %s: %s", peer, address, got.text)
			}
		}
	}
}

// Settings that do not go together stop the start with one line that names the variable.
func TestWrongTLSSettings(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	good, goodKey, _ := a.issue(t, time.Hour, console)
	file := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		put(t, path, text)
		return path
	}
	certificate, key := file("tls.crt", good), file("tls.key", goodKey)
	const (
		addr, cert, keyFile, domain = "KUBEBYON_HTTPS_ADDR", "KUBEBYON_TLS_CERT_FILE", "KUBEBYON_TLS_KEY_FILE", "KUBEBYON_CONSOLE_DOMAIN"
		email, directory, ca        = "KUBEBYON_ACME_EMAIL", "KUBEBYON_ACME_DIRECTORY_URL", "KUBEBYON_ACME_CA_FILE"
		encryption                  = "KUBEBYON_ENCRYPTION_KEY_FILE"
	)
	encryptionKey := file("key", []byte("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n"))
	acme := func(more ...string) []string {
		return append([]string{addr, ":0", email, "admin@example.com", domain, console, encryption, encryptionKey}, more...)
	}
	for _, c := range []struct {
		names string
		env   []string
	}{
		{addr, []string{addr, "8443", cert, certificate, keyFile, key}},
		{addr, []string{addr, ":0"}},
		{addr, []string{cert, certificate, keyFile, key}},
		{addr, []string{email, "admin@example.com", domain, console}},
		{addr, []string{directory, "https://acme.example.com/directory"}},
		{keyFile, []string{addr, ":0", cert, certificate}},
		{cert, []string{addr, ":0", keyFile, key}},
		{cert, []string{addr, ":0", cert, certificate, keyFile, key, email, "admin@example.com"}},
		{cert, []string{addr, ":0", cert, filepath.Join(dir, "absent"), keyFile, key}},
		{cert, []string{addr, ":0", cert, dir, keyFile, key}},
		{cert, []string{addr, ":0", cert, key, keyFile, certificate}},
		{cert, []string{addr, ":0", cert, file("huge", bytes.Repeat([]byte("x"), 2<<20)), keyFile, key}},
		{cert, []string{addr, ":0", cert, certificate, keyFile, key, domain, "nowhere.example.com"}},
		{keyFile, []string{addr, ":0", cert, certificate, keyFile, filepath.Join(dir, "absent")}},
		{keyFile, []string{addr, ":0", cert, certificate, keyFile, certificate}},
		{keyFile, []string{addr, ":0", cert, certificate, keyFile, file("canary.key", []byte("-----BEGIN PRIVATE KEY-----\ncanary\n-----END PRIVATE KEY-----\n"))}},
		{domain, []string{domain, "192.0.2.1"}},
		{domain, []string{domain, "[2001:db8::1]"}},
		{domain, []string{domain, "*.example.com"}},
		{domain, []string{domain, "console"}},
		{domain, []string{domain, "console.example.com."}},
		{domain, []string{domain, "console.example.com:443"}},
		{domain, []string{domain, "https://console.example.com"}},
		{domain, []string{domain, "con_sole.example.com"}},
		{domain, []string{domain, "console..example.com"}},
		{domain, []string{domain, "-console.example.com"}},
		{domain, []string{domain, "kонсоль.example.com"}},
		{domain, []string{domain, "1.2.3"}},
		{domain, []string{domain, strings.Repeat("a", 64) + ".example.com"}},
		{domain, []string{domain, strings.Repeat("a.", 126) + "aa"}},
		{domain, []string{addr, ":0", email, "admin@example.com", encryption, encryptionKey}},
		{encryption, []string{addr, ":0", email, "admin@example.com", domain, console}},
		{email, []string{addr, ":0", directory, "https://acme.example.com/directory", domain, console}},
		{email, []string{addr, ":0", email, "nobody", domain, console, encryption, encryptionKey}},
		{directory, acme(directory, "http://acme.example.com/directory")},
		{directory, acme(directory, "acme.example.com")},
		{directory, acme(directory, "https://user:canary@acme.example.com/")},
		{ca, acme(ca, filepath.Join(dir, "absent"))},
		{ca, acme(ca, file("empty", nil))},
		{ca, acme(ca, key)},
	} {
		env := map[string]string{}
		for i := 0; i < len(c.env); i += 2 {
			env[c.env[i]] = c.env[i+1]
		}
		var stderr bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		status := app.Main(ctx, nil, lookup(env), &stderr)
		cancel()
		line := strings.TrimSuffix(stderr.String(), "\n")
		name, _, _ := strings.Cut(strings.TrimPrefix(line, "kubebyon-gateway: "), ":")
		if status == 0 || name != c.names || !strings.Contains(line, "accepts ") || strings.Contains(line, "\n") || strings.Contains(line, "canary\"") {
			t.Errorf("%q: status %d, want %s in %q", c.env, status, c.names, line)
		}
	}
	for _, env := range [][]string{{domain, "Console.Example.com"}, {addr, ":0", cert, certificate, keyFile, key, domain, console}, acme(), acme(ca, certificate, directory, "https://127.0.0.1:14000/dir")} {
		set := map[string]string{}
		for i := 0; i < len(env); i += 2 {
			set[env[i]] = env[i+1]
		}
		if cfg, err := app.LoadConfig(lookup(set)); err != nil || (cfg.ConsoleDomain != "" && cfg.ConsoleDomain != console) {
			t.Errorf("%q: %q %v", env, cfg.ConsoleDomain, err)
		}
	}
}

func TestTLSAddressInUse(t *testing.T) {
	a := newAuthority(t)
	w := prepare(t, withoutServices, a.behindTLS(t, console))
	env := map[string]string{}
	a.behindTLS(t, console)(env, nil)
	env["KUBEBYON_HTTP_ADDR"], env["KUBEBYON_HTTPS_ADDR"] = "127.0.0.1:0", w.secure
	var stderr bytes.Buffer
	if status := app.Main(t.Context(), nil, lookup(env), &stderr); status == 0 || !strings.Contains(stderr.String(), "KUBEBYON_HTTPS_ADDR") {
		t.Errorf("status %d, %q", status, stderr.String())
	}
}
