package clientaddr_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/kubebyon/kubebyon/gateway/internal/clientaddr"
)

var trusted = clientaddr.Trust([]netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.1.2.3/8"), netip.MustParsePrefix("::ffff:172.16.0.0/108"), netip.MustParsePrefix("fd00::/8"),
})

func TestClient(t *testing.T) {
	for _, c := range []struct {
		name, peer string
		forwarded  []string
		real       []string
		want       string
	}{
		{name: "no proxy", peer: "192.0.2.1:5", want: "192.0.2.1"},
		{name: "an untrusted peer's word", peer: "192.0.2.1:5", forwarded: []string{"198.51.100.1"}, real: []string{"198.51.100.2"}, want: "192.0.2.1"},
		{name: "an untrusted peer that names a proxy", peer: "192.0.2.1:5", forwarded: []string{"198.51.100.1, 10.0.0.1"}, want: "192.0.2.1"},
		{name: "a proxy that says nothing", peer: "10.0.0.1:5", want: "10.0.0.1"},
		{name: "one hop", peer: "10.0.0.1:5", forwarded: []string{"198.51.100.1"}, want: "198.51.100.1"},
		{name: "what the client wrote itself", peer: "10.0.0.1:5", forwarded: []string{"203.0.113.9, 198.51.100.1"}, want: "198.51.100.1"},
		{name: "a proxy's address that the client wrote", peer: "10.0.0.1:5", forwarded: []string{"10.9.9.9, 198.51.100.1"}, want: "198.51.100.1"},
		{name: "two proxies", peer: "10.0.0.1:5", forwarded: []string{"203.0.113.9, 198.51.100.1, 10.0.0.2"}, want: "198.51.100.1"},
		{name: "proxies of several kinds", peer: "[fd00::1]:5", forwarded: []string{"203.0.113.9,198.51.100.1,172.16.5.5,127.0.0.1"}, want: "198.51.100.1"},
		{name: "proxies alone", peer: "10.0.0.1:5", forwarded: []string{"10.0.0.3, 10.0.0.2"}, want: "10.0.0.3"},
		{name: "several headers", peer: "10.0.0.1:5", forwarded: []string{"203.0.113.9", "198.51.100.1", "10.0.0.2"}, want: "198.51.100.1"},
		{name: "several headers with lists", peer: "10.0.0.1:5", forwarded: []string{"203.0.113.9, 203.0.113.8", "198.51.100.1 ,10.0.0.3", "10.0.0.2"}, want: "198.51.100.1"},

		{name: "nothing but garbage", peer: "10.0.0.1:5", forwarded: []string{"unknown"}, want: "10.0.0.1"},
		{name: "garbage after proxies", peer: "10.0.0.1:5", forwarded: []string{"198.51.100.1, _hidden, 10.0.0.2"}, want: "10.0.0.2"},
		{name: "garbage further left", peer: "10.0.0.1:5", forwarded: []string{"<script>, 198.51.100.1"}, want: "198.51.100.1"},
		{name: "an empty header", peer: "10.0.0.1:5", forwarded: []string{""}, want: "10.0.0.1"},
		{name: "an empty header after one", peer: "10.0.0.1:5", forwarded: []string{"198.51.100.1", ""}, want: "10.0.0.1"},
		{name: "an empty element", peer: "10.0.0.1:5", forwarded: []string{"198.51.100.1,,10.0.0.2"}, want: "10.0.0.2"},
		{name: "a comma at the end", peer: "10.0.0.1:5", forwarded: []string{"198.51.100.1,"}, want: "10.0.0.1"},
		{name: "quotes", peer: "10.0.0.1:5", forwarded: []string{`"198.51.100.1"`}, want: "10.0.0.1"},
		{name: "an element of the Forwarded header", peer: "10.0.0.1:5", forwarded: []string{"for=198.51.100.1"}, want: "10.0.0.1"},
		{name: "a name", peer: "10.0.0.1:5", forwarded: []string{"localhost"}, want: "10.0.0.1"},
		{name: "leading zeros", peer: "10.0.0.1:5", forwarded: []string{"198.051.100.1"}, want: "10.0.0.1"},
		{name: "half an address", peer: "10.0.0.1:5", forwarded: []string{"198.51.100"}, want: "10.0.0.1"},
		{name: "no port", peer: "10.0.0.1:5", forwarded: []string{"198.51.100.1:"}, want: "10.0.0.1"},
		{name: "a port that is none", peer: "10.0.0.1:5", forwarded: []string{"198.51.100.1:99999"}, want: "10.0.0.1"},
		{name: "IPv4 in brackets", peer: "10.0.0.1:5", forwarded: []string{"[198.51.100.1]"}, want: "10.0.0.1"},
		{name: "half a bracket", peer: "10.0.0.1:5", forwarded: []string{"[2001:db8::1"}, want: "10.0.0.1"},

		{name: "a port", peer: "10.0.0.1:5", forwarded: []string{"198.51.100.1:8080"}, want: "198.51.100.1"},
		{name: "tabs and blanks", peer: "10.0.0.1:5", forwarded: []string{"203.0.113.9,\t 198.51.100.1 \t"}, want: "198.51.100.1"},
		{name: "IPv6", peer: "10.0.0.1:5", forwarded: []string{"2001:db8::1"}, want: "2001:db8::1"},
		{name: "IPv6 in brackets", peer: "10.0.0.1:5", forwarded: []string{"[2001:db8::1]"}, want: "2001:db8::1"},
		{name: "IPv6 with a port", peer: "10.0.0.1:5", forwarded: []string{"[2001:db8::1]:443"}, want: "2001:db8::1"},
		{name: "a zone", peer: "10.0.0.1:5", forwarded: []string{"fe80::1%eth0"}, want: "fe80::1"},
		{name: "a proxy with a zone", peer: "[fd00::1%eth0]:5", forwarded: []string{"198.51.100.1, fd00::2%eth1"}, want: "198.51.100.1"},
		{name: "IPv4 in IPv6", peer: "10.0.0.1:5", forwarded: []string{"::ffff:198.51.100.1"}, want: "198.51.100.1"},
		{name: "a proxy's IPv4 in IPv6", peer: "[::ffff:10.0.0.1]:5", forwarded: []string{"198.51.100.1, ::ffff:10.0.0.2"}, want: "198.51.100.1"},
		{name: "a peer's IPv4 in IPv6", peer: "[::ffff:192.0.2.1]:5", forwarded: []string{"198.51.100.1"}, want: "192.0.2.1"},

		{name: "X-Real-IP", peer: "10.0.0.1:5", real: []string{"198.51.100.1"}, want: "198.51.100.1"},
		{name: "X-Real-IP with blanks", peer: "10.0.0.1:5", real: []string{" 2001:db8::1 "}, want: "2001:db8::1"},
		{name: "X-Real-IP beside X-Forwarded-For", peer: "10.0.0.1:5", forwarded: []string{"198.51.100.1"}, real: []string{"203.0.113.9"}, want: "198.51.100.1"},
		{name: "X-Real-IP beside garbage", peer: "10.0.0.1:5", forwarded: []string{"unknown"}, real: []string{"203.0.113.9"}, want: "10.0.0.1"},
		{name: "X-Real-IP beside an empty X-Forwarded-For", peer: "10.0.0.1:5", forwarded: []string{""}, real: []string{"203.0.113.9"}, want: "10.0.0.1"},
		{name: "X-Real-IP twice", peer: "10.0.0.1:5", real: []string{"203.0.113.9", "198.51.100.1"}, want: "10.0.0.1"},
		{name: "X-Real-IP as a list", peer: "10.0.0.1:5", real: []string{"203.0.113.9, 198.51.100.1"}, want: "10.0.0.1"},
		{name: "X-Real-IP that is none", peer: "10.0.0.1:5", real: []string{"nobody"}, want: "10.0.0.1"},

		{name: "a peer without an address", peer: "@", forwarded: []string{"198.51.100.1"}, want: "invalid IP"},
	} {
		header := http.Header{}
		if c.forwarded != nil {
			header["X-Forwarded-For"] = c.forwarded
		}
		if c.real != nil {
			header["X-Real-Ip"] = c.real
		}
		if got := trusted.Client(c.peer, header).String(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// Without a trusted network nothing that a header says counts.
func TestNobodyIsTrustedByDefault(t *testing.T) {
	header := http.Header{"X-Forwarded-For": {"198.51.100.1"}, "X-Real-Ip": {"198.51.100.2"}}
	if got := clientaddr.Trust(nil).Client("127.0.0.1:5", header).String(); got != "127.0.0.1" {
		t.Error(got)
	}
}

// Other spellings of the headers are other headers.
func TestOtherSpellings(t *testing.T) {
	for _, name := range []string{"X_Forwarded_For", "X_forwarded-For", "X-Forwarded_For", "X_Real_Ip", "Forwarded", "X-Client-Ip", "True-Client-Ip", "Cf-Connecting-Ip"} {
		if got := trusted.Client("10.0.0.1:5", http.Header{name: {"198.51.100.1"}}).String(); got != "10.0.0.1" {
			t.Errorf("%s counts: %s", name, got)
		}
	}
}

func TestLimitKey(t *testing.T) {
	for given, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7", "2001:db8:1:2::1": "2001:db8:1:2::/64", "2001:db8:1:2:ffff:ffff:ffff:ffff": "2001:db8:1:2::/64",
		"2001:db8:1:3::1": "2001:db8:1:3::/64", "fe80::1%eth0": "fe80::/64", "::1": "::/64",
	} {
		if got := clientaddr.LimitKey(netip.MustParseAddr(given)); got != want {
			t.Errorf("%s: %s, want %s", given, got, want)
		}
	}
	if got := clientaddr.LimitKey(netip.Addr{}); got == "" {
		t.Error("an unknown address has no key")
	}
}

// No bytes in the headers give an address that the peer's trust does not justify.
func FuzzClient(f *testing.F) {
	f.Add("10.0.0.1:5", "203.0.113.9, 198.51.100.1", "10.0.0.2", "198.51.100.7")
	f.Add("192.0.2.1:5", "203.0.113.9", "", "198.51.100.7")
	f.Add("[::ffff:10.0.0.1%x]:5", "[2001:db8::1]:443,,", "fe80::1%eth0", " ")
	f.Add("10.0.0.1:5", "unknown,10.0.0.9", "10.0.0.2,::ffff:10.0.0.1", "")
	f.Fuzz(func(t *testing.T, peer, first, second, told string) {
		isProxy := func(a netip.Addr) bool {
			for _, n := range []string{"127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "fd00::/8"} {
				if netip.MustParsePrefix(n).Contains(a) {
					return true
				}
			}
			return false
		}
		direct := trusted.Client(peer, nil)
		got := trusted.Client(peer, http.Header{"X-Forwarded-For": {first, second}, "X-Real-Ip": {told}})
		if got.Is4In6() || got.Zone() != "" {
			t.Fatalf("%v is not in its plain form", got)
		}
		if !isProxy(direct) {
			if got != direct {
				t.Fatalf("an untrusted peer %v decided about %v", direct, got)
			}
			return
		}
		// Every hop right of the one that counts is a trusted proxy, and it is itself an element of the list.
		hops := strings.Split(first+","+second, ",")
		justified := got == direct
		for i := len(hops) - 1; i >= 0; i-- {
			hop := trusted.Client(strings.Trim(hops[i], " \t"), nil) // as the peer's own address it is read by itself
			justified = justified || hop == got && hop.IsValid()
			if !isProxy(hop) {
				break
			}
		}
		if !justified {
			t.Fatalf("%v came from %q, %q, %q by %v", got, first, second, told, direct)
		}
		// What the proxy adds at the right end is the client, whatever stands before it.
		client := netip.MustParseAddr("198.51.100.200")
		for _, header := range []http.Header{
			{"X-Forwarded-For": {first, second, client.String()}, "X-Real-Ip": {told}},
			{"X-Forwarded-For": {first, second + ", " + client.String()}, "X-Real-Ip": {told}},
			{"X-Forwarded-For": {first, second, client.String() + ", 10.0.0.9"}, "X-Real-Ip": {told}},
		} {
			if got := trusted.Client(peer, header); got != client {
				t.Fatalf("%v hid %v: %q", got, client, header)
			}
		}
		// X-Real-IP alone is the peer or what the peer says.
		if got := trusted.Client(peer, http.Header{"X-Real-Ip": {told}}); got != direct && got != trusted.Client(strings.Trim(told, " \t"), nil) {
			t.Fatalf("%v came from %q by %v", got, told, direct)
		}
	})
}
