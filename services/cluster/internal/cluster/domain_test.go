package cluster

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// longName is a DNS name of n characters, from 4 on.
func longName(n int) string {
	name := strings.Repeat("a.", n/2)[:n-2] + "bc"
	return strings.ReplaceAll(name, ".bc", "abc")
}

// Each name that is none is refused for what it is.
func TestWrongNamesAreExplained(t *testing.T) {
	if n := longName(253); len(n) != 253 || len(longName(254)) != 254 {
		t.Fatalf("%d: %s", len(n), n)
	}
	label := strings.Repeat("l", 63)
	for _, mode := range []clusterv1.AccessMode{clusterv1.NodePort, clusterv1.LoadBalancer} {
		for _, c := range []struct{ in, want, message, action string }{
			{"Demo.EXAMPLE.com", "demo.example.com", "", ""},
			{"demo.example.com.", "demo.example.com", "", ""},
			{" demo.example.com\n", "demo.example.com", "", ""},
			{"xn--exmple-cua.com", "xn--exmple-cua.com", "", ""},
			{"10-0-0-7.sslip.io", "10-0-0-7.sslip.io", "", ""},
			{label + ".example.com", label + ".example.com", "", ""},
			{longName(253), longName(253), "", ""},
			{longName(253) + ".", longName(253), "", ""},
			{longName(254), "", "254 characters", "k8s.example.com"},
			{label + "l.example.com", "", "64 characters", "k8s.example.com"},
			{"*.example.com", "", "wildcard", "k8s.example.com"},
			{"demo.*.com", "", "wildcard", "k8s.example.com"},
			{"a_b.example.com", "", "underscore", "with -"},
			{"demo..example.com", "", "empty label", "k8s.example.com"},
			{".example.com", "", "empty label", "k8s.example.com"},
			{"demo.example.com..", "", "empty label", "k8s.example.com"},
			{".", "", "empty", "k8s.example.com"},
			{"-demo.example.com", "", "begins or ends with -", "k8s.example.com"},
			{"demo.example-", "", "begins or ends with -", "k8s.example.com"},
			{"demo example.com", "", "other than a-z", "k8s.example.com"},
			{"demo.example.com;reload", "", "other than a-z", "k8s.example.com"},
			{"demo\x00.example.com", "", "other than a-z", "k8s.example.com"},
			{"demo.example.7", "", "number", "k8s.example.com"},
			{"demo.example.0x7", "", "number", "k8s.example.com"},
			{"exämple.com", "", "letters other than", "write it as xn--exmple-cua.com"},
			{"EXÄMPLE.com.", "", "letters other than", "write it as xn--exmple-cua.com"},
			{"集群.例え.jp", "", "letters other than", "write it as xn--7t0as78b.xn--r8jz45g.jp"},
			{"faß.de", "", "letters other than", "write it as xn--fa-hia.de"},
			// What no punycode stands for, or what would be an address.
			{"a\u200db.com", "", "letters other than", "k8s.example.com"},
			{"\xff.com", "", "letters other than", "k8s.example.com"},
			{"１２７.0.0.1", "", "letters other than", "k8s.example.com"},
			{strings.Repeat("ä.", 1<<19) + "com", "", "letters other than", "k8s.example.com"},
		} {
			got, err := Policy{}.cleanHost(c.in, mode)
			f := fault.From(err)
			if c.message == "" {
				if err != nil || got != c.want {
					t.Errorf("%.60q by %s: %q, %v", c.in, mode, got, err)
				}
				continue
			}
			if code(err) != "host_invalid" || got != "" || !strings.Contains(f.Message, c.message) || !strings.Contains(f.Action, c.action) || f.Field != hostField || len(f.Message)+len(f.Action) > 400 {
				t.Errorf("%.60q by %s: %q, %v, do %q; want %q, %q", c.in, mode, got, err, f.Action, c.message, c.action)
			}
		}
	}
	for _, address := range []string{"10.0.0.7", "8.8.8.8", "::ffff:10.0.0.7", "2001:db8::1", "demo"} {
		if _, err := (Policy{}).cleanHost(address, clusterv1.LoadBalancer); code(err) != "host_must_be_domain" {
			t.Errorf("%s behind the balancer: %v", address, err)
		}
	}
}

func TestReservedDomains(t *testing.T) {
	const taken, free = "control_plane_host_reserved", ""
	example := Domains{Console: "console.example.com", Base: "k8s.example.com", Reserved: []string{"corp.internal", "intra.example.net"}}
	for _, c := range []struct {
		d    Domains
		host string
		want string
	}{
		{Domains{}, "console.example.com", free},
		{Domains{Console: "console.example.com"}, "console.example.com", taken},
		{Domains{Console: "console.example.com"}, "CONSOLE.example.com.", taken},
		{Domains{Console: "console.example.com"}, "x.console.example.com", taken},
		{Domains{Console: "console.example.com"}, "example.com", taken},
		{Domains{Console: "console.example.com"}, "demo.example.com", taken},
		{Domains{Console: "console.example.com"}, "a.b.example.com", taken},
		{Domains{Console: "console.example.com"}, "example.org", free},
		{Domains{Console: "console.example.com"}, "notexample.com", free},
		{Domains{Console: "console.example.com"}, "console.example.com.evil.org", free},
		{Domains{Console: "console.example.co.uk"}, "other.co.uk", free},
		{Domains{Console: "console.example.co.uk"}, "other.example.co.uk", taken},
		{Domains{Console: "a.github.io"}, "b.github.io", free},
		{Domains{Console: "a.github.io"}, "x.a.github.io", taken},
		{Domains{Console: "a.github.io"}, "github.io", taken},
		{Domains{Console: "github.io"}, "x.github.io", taken},
		{Domains{Console: "console.internal"}, "demo.console.internal", taken},
		{Domains{Console: "console.internal"}, "demo.internal", free},
		{example, "demo.k8s.example.com", free},
		{example, "a.b.k8s.example.com", free},
		{example, "k8s.example.com", taken},
		{example, "xk8s.example.com", taken},
		{example, "demo.example.com", taken},
		{example, "corp.internal", taken},
		{example, "x.y.corp.internal", taken},
		{example, "internal.example.net", free},
		{example, "intra.example.net", taken},
		{example, "example.net", free},
		{example, "xcorp.internal", free},
		{Domains{Base: "k8s.example.com"}, "k8s.example.com", taken},
		{Domains{Base: "k8s.example.com"}, "demo.example.com", free},
		{Domains{Console: "console.k8s.example.com", Base: "k8s.example.com"}, "demo.k8s.example.com", free},
		{Domains{Console: "console.k8s.example.com", Base: "k8s.example.com"}, "x.console.k8s.example.com", taken},
		{Domains{Console: "console.206-189-80-126.sslip.io", Base: "206-189-80-126.sslip.io"}, "demo.206-189-80-126.sslip.io", free},
		{Domains{Console: "console.206-189-80-126.sslip.io", Base: "206-189-80-126.sslip.io"}, "demo.1-1-1-1.sslip.io", taken},
		{Domains{Reserved: []string{"x.k8s.example.com"}, Base: "k8s.example.com"}, "a.x.k8s.example.com", taken},
	} {
		if err := c.d.Check(); err != nil {
			t.Errorf("%+v: %v", c.d, err)
		}
		got, err := Policy{Domains: c.d}.cleanHost(c.host, clusterv1.LoadBalancer)
		if code(err) != c.want || (got == "") != (err != nil) {
			t.Errorf("%s with %+v: %q, %v, want %q", c.host, c.d, got, err, c.want)
		}
		if _, err := (Policy{Domains: c.d}).cleanHost(c.host, clusterv1.NodePort); err != nil {
			t.Errorf("%s, which no edge leads to: %v", c.host, err)
		}
	}
}

func TestDomainsThatGiveNoNames(t *testing.T) {
	for what, d := range map[string]Domains{
		"the console's":           {Console: "k8s.example.com", Base: "k8s.example.com"},
		"beneath the console's":   {Console: "example.com", Base: "k8s.example.com"},
		"reserved":                {Base: "k8s.example.com", Reserved: []string{"example.org", "k8s.example.com"}},
		"beneath a reserved one":  {Base: "k8s.example.com", Reserved: []string{"example.com"}},
		"too long for any's name": {Base: longName(maxBase + 1)},
	} {
		if d.Check() == nil {
			t.Errorf("%s: taken", what)
		}
	}
	d := Domains{Base: longName(maxBase)}
	if err := d.Check(); err != nil {
		t.Fatal(err)
	}
	name := d.give(strings.Repeat("v", maxVClusterName), strings.Repeat("r", 20))
	if text, _ := wrongName(name); text != "" || len(name) != 253 {
		t.Errorf("%q: %s", name, text)
	}
}

// Whatever is let through is a name that stands in HAProxy's configuration as it is, and leads into nothing of the operator's.
func FuzzDomain(f *testing.F) {
	for _, s := range []string{"demo.example.com", "A.B.", "console.example.com", "x.console.EXAMPLE.com.", "exämple.com", "例え.jp", "a_b.c", "*.x.y", "10.0.0.1", "0x7f.1", "a\x00.b", "a b.c", "Ⅷ.com", "k\u212a.com"} {
		f.Add(s)
	}
	d := Domains{Console: "console.example.com", Base: "k8s.example.com", Reserved: []string{"corp.internal"}}
	p := Policy{Domains: d}
	f.Fuzz(func(t *testing.T, in string) {
		host, err := p.cleanHost(in, clusterv1.LoadBalancer)
		if err != nil {
			var known *fault.Error
			if !errors.As(err, &known) || host != "" {
				t.Fatalf("%q: %q, %v", in, host, err)
			}
			if ascii, found := strings.CutPrefix(known.Action, "write it as "); found && code(err) == "host_invalid" {
				if again, err := (Policy{}).cleanHost(ascii, clusterv1.NodePort); code(err) == "host_invalid" || err == nil && again != ascii {
					t.Fatalf("%q is to be written %q, which is %q, %v", in, ascii, again, err)
				}
			}
			return
		}
		if again, err := p.cleanHost(host, clusterv1.LoadBalancer); err != nil || again != host {
			t.Fatalf("cleaning %q again gives %q, %v", host, again, err)
		}
		if strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" || len(host) > 253 || !strings.Contains(host, ".") {
			t.Fatalf("%q became %q", in, host)
		}
		if _, err := netip.ParseAddr(host); err == nil {
			t.Fatalf("%q became the address %q", in, host)
		}
		if (strings.HasSuffix(host, ".example.com") && !strings.HasSuffix(host, ".k8s.example.com")) || host == "example.com" || strings.HasSuffix("."+host, ".corp.internal") {
			t.Fatalf("%q became the operator's %q", in, host)
		}
	})
}
