package httpapi

import (
	"net/netip"
	"strings"
	"testing"
)

func TestAgrees(t *testing.T) {
	const console = "console.example.com"
	for _, c := range []struct {
		server, host, domain string
		want                 bool
	}{
		{console, console, console, true},
		{console, console + ":443", console, true},
		{console, console + ":8443", console, true},
		{console, "Console.EXAMPLE.com", console, true},
		{"CONSOLE.example.com", console, console, true},
		{console, console + ".", console, true},
		{console, console + ".:443", console, true},
		{console, console + "..", console, false},
		{console, "." + console, console, false},
		{console, "other.example.com", console, false},
		{"other.example.com", console, console, false},
		{"other.example.com", "other.example.com", console, false},
		{"", console, console, false},
		{console, "", console, false},
		{"", "", console, false},
		{console, "192.0.2.1", console, false},
		{console, "[2001:db8::1]", console, false},
		{console, console + ":", console, false},
		{console, console + ":0", console, false},
		{console, console + ":65536", console, false},
		{console, console + ":https", console, false},
		{console, console + ":443:443", console, false},
		{console, "user@" + console, console, false},
		{console, console + "/", console, false},
		{console, console + "#", console, false},
		{console, " " + console, console, false},
		{console, "xn--" + console, console, false},
		{console, "conſole.example.com", console, false}, // the long s, which upper case would make an S of
		{console, "console。example。com", console, false}, // ideographic full stops

		{console, console, "", true},
		{console, "other.example.com", "", false},
		{"", console, "", false},
		{"", "192.0.2.1:8443", "", true},
		{"192.0.2.1", "192.0.2.1", "", true},
		{"", "[2001:db8::1]", "", true},
		{"", "[2001:DB8:0::1]:8443", "", true},
		{"", "[2001:db8::1", "", false},
		{"", "[2001:db8::1]8443", "", false},
		{"", "[2001:db8::1]:", "", false},
		{"", "[2001:db8::1%eth0]", "", false},
		{"", "[192.0.2.1]", "", false},
		{"", "2001:db8::1", "", false},
		{"", "[]", "", false},
		{console, "192.0.2.1", "", false},
		{"", "localhost", "", false},
		{"", "", "", false},
	} {
		if got := agrees(c.server, c.host, c.domain); got != c.want {
			t.Errorf("handshake for %q, request for %q, domain %q: %v", c.server, c.host, c.domain, got)
		}
	}
}

// Whatever agrees with a domain is that domain, but for case, port and the root's dot.
func FuzzAgrees(f *testing.F) {
	for _, host := range []string{"console.example.com", "console.example.com.:443", "[::1]:443", "a:b:c", "", "[", "]:1", "console.example.com:00443"} {
		f.Add("console.example.com", host)
		f.Add("", host)
	}
	f.Fuzz(func(t *testing.T, server, host string) {
		const console = "console.example.com"
		if agrees(server, host, console) {
			name, _, _ := strings.Cut(host, ":")
			if strings.TrimSuffix(strings.ToLower(name), ".") != console || strings.ToLower(server) != console {
				t.Errorf("%q agrees with %q", host, server)
			}
		}
		if server == "" && agrees(server, host, "") {
			if name, ok := hostName(host); !ok || !netip.MustParseAddr(name).IsValid() {
				t.Errorf("%q agrees without a name in the handshake", host)
			}
		}
	})
}
