package reach_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/reach"
)

func TestForbidden(t *testing.T) {
	for text, want := range map[string]bool{
		"127.0.0.1": true, "127.8.8.8": true, "::1": true, "::ffff:127.0.0.1": true,
		"0.0.0.0": true, "0.1.2.3": true, "::": true, "255.255.255.255": true, "240.0.0.1": true,
		"169.254.169.254": true, "169.254.0.1": true, "fe80::1": true, "fe80::1%eth0": true, "::ffff:169.254.169.254": true,
		"224.0.0.1": true, "ff02::1": true,
		"100.100.100.200": true, "192.0.0.192": true, "168.63.129.16": true, "fd00:ec2::254": true, "fd00:ec2::254%eth0": true,
		// an IPv4 address carried by IPv6
		"::127.0.0.1": true, "::ffff:0:169.254.169.254": true, "64:ff9b::169.254.169.254": true, "64:ff9b::7f00:1": true,
		"2002:7f00:1::": true, "2002:a9fe:a9fe::1": true,

		"198.18.0.2": false, "10.0.0.7": false, "172.16.0.1": false, "192.168.1.1": false, "100.64.0.1": false, "8.8.8.8": false,
		"2001:db8::1": false, "fd12:3456::1": false, "64:ff9b::8.8.8.8": false, "2002:808:808::1": false, "::ffff:10.0.0.7": false,
	} {
		if got := reach.Forbidden(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	if !reach.Forbidden(netip.Addr{}) {
		t.Error("no address is allowed")
	}
}

// A name is judged by what it leads to at the moment of the connection.
func TestControl(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"localhost", "127.0.0.1"} {
		dialer := net.Dialer{Timeout: 5 * time.Second, Control: reach.Control(false)}
		conn, err := dialer.DialContext(t.Context(), "tcp4", net.JoinHostPort(host, port))
		if err == nil {
			_ = conn.Close()
		}
		if f := fault.From(err); !errors.Is(err, reach.ErrForbidden) || f.Kind != fault.Precondition || f.Code != "host_refused" || f.Action == "" {
			t.Errorf("%s: %v", host, err)
		}
		dialer.Control = reach.Control(true)
		if conn, err = dialer.DialContext(t.Context(), "tcp4", net.JoinHostPort(host, port)); err != nil {
			t.Errorf("%s, allowed: %v", host, err)
			continue
		}
		_ = conn.Close()
	}
	// Loopback alone is allowed by the exception.
	for _, at := range []string{"169.254.169.254:80", "[fe80::1%eth0]:80", "0.0.0.0:80", "nothing"} {
		if reach.Control(true)("tcp", at, nil) == nil {
			t.Errorf("%s is allowed", at)
		}
	}
}
