package layout

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseNet(t *testing.T) {
	n, err := ParseNet("198.18.7.0/24")
	if err != nil {
		t.Fatal(err)
	}
	if n.Host().String() != "198.18.7.2" || n.Gateway().String() != "198.18.7.1" || n.Bridge() != "kbbr7" || n.Prefix().String() != "198.18.7.0/24" {
		t.Errorf("host %s, gateway %s, bridge %s, prefix %s", n.Host(), n.Gateway(), n.Bridge(), n.Prefix())
	}
	for _, s := range []string{"", "198.18.7.0", "198.18.7.0/16", "198.18.7.1/24", "198.19.7.0/24", "10.0.0.0/24", "::/24", "198.18.256.0/24"} {
		if _, err := ParseNet(s); err == nil || !strings.Contains(err.Error(), "KUBEBYON_DEVHOST_NETWORK") {
			t.Errorf("%q: error %v", s, err)
		}
	}
}

func TestFromEnv(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "go.work"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	inside := filepath.Join(root, "a", "b")
	if err := os.MkdirAll(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	env := func(pairs ...string) func(string) (string, bool) {
		return func(name string) (string, bool) {
			for i := 0; i < len(pairs); i += 2 {
				if pairs[i] == name {
					return pairs[i+1], true
				}
			}
			return "", false
		}
	}
	l, err := FromEnv(env("HOME", "/home/u"), inside)
	if err != nil {
		t.Fatal(err)
	}
	want := Layout{Cache: "/home/u/.cache/kubebyon", State: filepath.Join(root, ".run"), Source: filepath.Join(root, "deploy/devhost")}
	if l != want {
		t.Errorf("got %+v, want %+v", l, want)
	}
	l, err = FromEnv(env("KUBEBYON_CACHE", "/c", "KUBEBYON_STATE", "/s", "KUBEBYON_DEVHOST_NETWORK", "198.18.9.0/24"), root)
	if err != nil || l.Cache != "/c" || l.State != "/s" || l.Net.Octet() != 9 {
		t.Errorf("got %+v, error %v", l, err)
	}
	if _, err := FromEnv(env(), root); err == nil {
		t.Error("neither HOME nor KUBEBYON_CACHE, and no error")
	}
	if _, err := FromEnv(env("HOME", "/h"), "/"); err == nil || !strings.Contains(err.Error(), "go.work") {
		t.Errorf("outside the source tree: %v", err)
	}
}

func TestBelow(t *testing.T) {
	for _, c := range []struct {
		path, dir string
		want      bool
	}{{"/var/lib", "/var/lib", true}, {"/var/lib/x", "/var/lib", true}, {"/var/library", "/var/lib", false}, {"/x", "/", true}, {"/", "/x", false}} {
		if got := Below(c.path, c.dir); got != c.want {
			t.Errorf("Below(%q, %q) = %t", c.path, c.dir, got)
		}
	}
}
