package clientaddr_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/kubebyon/kubebyon/gateway/internal/clientaddr"
)

// from is a listener's address where connections seem to come from somebody else.
type from struct {
	net.Listener
	peer net.Addr
}

type fromConn struct {
	net.Conn
	peer net.Addr
}

func (f from) Accept() (net.Conn, error) {
	conn, err := f.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return fromConn{conn, f.peer}, nil
}

func (c fromConn) RemoteAddr() net.Addr { return c.peer }

// said sends first over a connection from peer, and gives whom the listener takes it to be of and what of it is left to read.
func said(t *testing.T, proxies clientaddr.Proxies, peer string, first []byte) (client, left string, failure error) {
	t.Helper()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := proxies.Listen(from{plain, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(peer))})
	defer func() { _ = listener.Close() }()
	sending, err := net.Dial("tcp", plain.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sending.Close() }()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := sending.Write(first); err != nil {
		t.Fatal(err)
	}
	_ = sending.(*net.TCPConn).CloseWrite()
	return heard(conn)
}

func heard(conn net.Conn) (client, left string, failure error) {
	client = clientaddr.Trust(nil).Client(conn.RemoteAddr().String(), nil).String()
	rest, err := io.ReadAll(conn)
	return client, string(rest), err
}

// one is a listener of one connection, without a network: a fuzzer would use up the machine's ports.
type one struct {
	net.Listener
	conn net.Conn
}

func (o one) Accept() (net.Conn, error) { return o.conn, nil }

func piped(t *testing.T, proxies clientaddr.Proxies, peer string, first []byte) (client, left string, failure error) {
	t.Helper()
	sending, receiving := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = sending.Write(first)
		_ = sending.Close()
	}()
	defer func() { _ = receiving.Close(); <-done }()
	conn, err := proxies.Listen(from{one{conn: receiving}, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(peer))}).Accept()
	if err != nil {
		t.Fatal(err)
	}
	return heard(conn)
}

func header(tb testing.TB, version byte, command proxyproto.ProtocolVersionAndCommand, protocol proxyproto.AddressFamilyAndProtocol, source, destination net.Addr) []byte {
	tb.Helper()
	h := &proxyproto.Header{Version: version, Command: command, TransportProtocol: protocol, SourceAddr: source, DestinationAddr: destination}
	text, err := h.Format()
	if err != nil {
		tb.Fatal(err)
	}
	return text
}

func tcp(address string) *net.TCPAddr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))
}

func TestProxyProtocol(t *testing.T) {
	const hello = "\x16\x03\x01 hello"
	v4 := header(t, 2, proxyproto.PROXY, proxyproto.TCPv4, tcp("198.51.100.7:4711"), tcp("192.0.2.1:443"))
	v6 := header(t, 2, proxyproto.PROXY, proxyproto.TCPv6, tcp("[2001:db8::7]:4711"), tcp("[2001:db8::1]:443"))
	local := header(t, 2, proxyproto.LOCAL, proxyproto.UNSPEC, nil, nil)
	v1 := []byte("PROXY TCP4 198.51.100.7 192.0.2.1 4711 443\r\n")
	udp := header(t, 2, proxyproto.PROXY, proxyproto.UDPv4, net.UDPAddrFromAddrPort(netip.MustParseAddrPort("198.51.100.7:4711")), net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:443")))
	unix := header(t, 2, proxyproto.PROXY, proxyproto.UnixStream, &net.UnixAddr{Net: "unix", Name: "/a"}, &net.UnixAddr{Net: "unix", Name: "/b"})
	nobody := header(t, 2, proxyproto.PROXY, proxyproto.TCPv4, tcp("0.0.0.0:1"), tcp("192.0.2.1:443"))
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for _, c := range []struct {
		name, peer string
		first      []byte
		client     string
		left       string // empty: the connection fails
	}{
		{"a trusted peer for an IPv4 client", "10.0.0.1:5", join(v4, []byte(hello)), "198.51.100.7", hello},
		{"a trusted peer for an IPv6 client", "10.0.0.1:5", join(v6, []byte(hello)), "2001:db8::7", hello},
		{"a trusted IPv6 peer", "[fd00::1]:5", join(v4, []byte(hello)), "198.51.100.7", hello},
		{"a trusted peer's IPv4 in IPv6", "[::ffff:10.0.0.1]:5", join(v4, []byte(hello)), "198.51.100.7", hello},
		{"this machine", "127.0.0.1:5", join(v4, []byte(hello)), "198.51.100.7", hello},
		{"this machine by IPv6", "[::1]:5", join(v6, []byte(hello)), "2001:db8::7", hello},
		{"a trusted peer for itself", "10.0.0.1:5", []byte(hello), "10.0.0.1", hello},
		{"a trusted peer's health check", "10.0.0.1:5", join(local, []byte(hello)), "10.0.0.1", hello},
		{"a trusted peer twice", "10.0.0.1:5", join(v4, v6, []byte(hello)), "198.51.100.7", string(v6) + hello},
		{"a client that has made up one", "10.0.0.1:5", join(v4, v1, []byte(hello)), "198.51.100.7", string(v1) + hello},
		{"version 1", "10.0.0.1:5", join(v1, []byte(hello)), "10.0.0.1", ""},
		{"UDP", "10.0.0.1:5", join(udp, []byte(hello)), "10.0.0.1", ""},
		{"a socket's path", "10.0.0.1:5", join(unix, []byte(hello)), "10.0.0.1", ""},
		{"no address", "10.0.0.1:5", join(nobody, []byte(hello)), "10.0.0.1", ""},
		{"half a header", "10.0.0.1:5", v4[:20], "10.0.0.1", ""},
		{"another command", "10.0.0.1:5", join(v4[:12], []byte{0x2f}, v4[13:], []byte(hello)), "10.0.0.1", ""},
		// Of a stranger every byte is left for TLS, which cannot read it.
		{"a stranger", "192.0.2.66:5", join(v4, []byte(hello)), "192.0.2.66", string(v4) + hello},
		{"a stranger by version 1", "192.0.2.66:5", join(v1, []byte(hello)), "192.0.2.66", string(v1) + hello},
		{"a stranger for itself", "192.0.2.66:5", []byte(hello), "192.0.2.66", hello},
	} {
		client, left, err := said(t, trustedWithoutLoopback, c.peer, c.first)
		if client != c.client || left != c.left || (err != nil) != (c.left == "") {
			t.Errorf("%s: %s, want %s; %q left, want %q; %v", c.name, client, c.client, left, c.left, err)
		}
	}
}

var trustedWithoutLoopback = clientaddr.Trust([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")})

// A header comes in as many pieces as the network makes of it.
func TestProxyProtocolInPieces(t *testing.T) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := clientaddr.Trust(nil).Listen(plain)
	defer func() { _ = listener.Close() }()
	sending, err := net.Dial("tcp", plain.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sending.Close() }()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	go func() {
		for _, b := range header(t, 2, proxyproto.PROXY, proxyproto.TCPv4, tcp("198.51.100.7:4711"), tcp("192.0.2.1:443")) {
			_, _ = sending.Write([]byte{b})
		}
		_, _ = fmt.Fprint(sending, "x")
		_ = sending.(*net.TCPConn).CloseWrite()
	}()
	if rest, err := io.ReadAll(conn); string(rest) != "x" || err != nil || !strings.HasPrefix(conn.RemoteAddr().String(), "198.51.100.7:") {
		t.Errorf("%q of %s: %v", rest, conn.RemoteAddr(), err)
	}
}

// No bytes of a stranger change who it is, and none of a trusted peer make the client anything but an address.
func FuzzProxyProtocol(f *testing.F) {
	for _, first := range [][]byte{nil, []byte("PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\nx"), []byte("\x16\x03\x01"),
		header(f, 2, proxyproto.PROXY, proxyproto.TCPv4, tcp("198.51.100.7:4711"), tcp("192.0.2.1:443")),
		header(f, 2, proxyproto.PROXY, proxyproto.TCPv6, tcp("[2001:db8::7]:4711"), tcp("[2001:db8::1]:443"))} {
		f.Add(first, true)
		f.Add(first, false)
	}
	f.Fuzz(func(t *testing.T, first []byte, trusted bool) {
		peer := "192.0.2.66:5"
		if trusted {
			peer = "10.0.0.1:5"
		}
		client, left, _ := piped(t, trustedWithoutLoopback, peer, first)
		if !trusted && (client != "192.0.2.66" || left != string(first)) {
			t.Errorf("a stranger is %s after %q, of which %q is left", client, first, left)
		}
		if address, err := netip.ParseAddr(client); err != nil || !address.IsValid() || address.IsUnspecified() {
			t.Errorf("the client is %s", client)
		}
	})
}
