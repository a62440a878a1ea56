package machine

import (
	"bytes"
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestOptions(t *testing.T) {
	good := func() Options { return Options{Name: "w1", State: "/s", Cache: "/c"} }
	o := good()
	if err := o.check(); err != nil || o.Suite != Bookworm || o.Init != Systemd || o.Log == nil {
		t.Errorf("defaults: %+v, %v", o, err)
	}
	for name, spoil := range map[string]func(*Options){
		"no name":          func(o *Options) { o.Name = "" },
		"a path as name":   func(o *Options) { o.Name = "../x" },
		"an option":        func(o *Options) { o.Name = "-x" },
		"upper case":       func(o *Options) { o.Name = "W" },
		"long":             func(o *Options) { o.Name = strings.Repeat("a", 33) },
		"suite":            func(o *Options) { o.Suite = "sid" },
		"init":             func(o *Options) { o.Init = "openrc" },
		"octet":            func(o *Options) { o.Octet = 256 },
		"no state":         func(o *Options) { o.State = "" },
		"the gateway":      func(o *Options) { o.IP = netip.MustParseAddr("198.18.0.1") },
		"the host":         func(o *Options) { o.IP = netip.MustParseAddr("198.18.0.2") },
		"another network":  func(o *Options) { o.IP = netip.MustParseAddr("198.18.1.11") },
		"not our range":    func(o *Options) { o.IP = netip.MustParseAddr("10.0.0.11") },
		"not a v4 address": func(o *Options) { o.IP = netip.MustParseAddr("fd00::11") },
	} {
		o := good()
		spoil(&o)
		if err := o.check(); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestPackages(t *testing.T) {
	if slices.Contains(packages(Trixie), "containerd") || !slices.Contains(packages(Bookworm), "containerd") {
		t.Error("one suite must bring containerd, the other not")
	}
}

func TestCLIUsage(t *testing.T) {
	t.Setenv("KUBEBYON_STATE", t.TempDir())
	t.Setenv("KUBEBYON_CACHE", t.TempDir())
	for _, args := range [][]string{nil, {"up"}, {"frobnicate"}, {"exec", "x"}, {"down"}, {"list", "x"}, {"up", "w", "--frob"}, {"up", "w", "--ip", "x"}, {"up", "w", "x"}} {
		var stderr bytes.Buffer
		if code := CLI(context.Background(), args, &stderr, &stderr); code != 2 || !strings.Contains(stderr.String(), "usage:") {
			t.Errorf("%q: %d, %s", args, code, stderr.String())
		}
	}
	for _, args := range [][]string{{"exec", "nobody", "--", "true"}, {"down", "nobody"}, {"exec", "../..", "--", "true"}} {
		var stderr bytes.Buffer
		if code := CLI(context.Background(), args, &stderr, &stderr); code != 1 || !strings.Contains(stderr.String(), "machine") {
			t.Errorf("%q: %d, %s", args, code, stderr.String())
		}
	}
}
