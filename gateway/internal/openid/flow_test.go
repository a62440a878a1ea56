package openid

import (
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestLocalPath(t *testing.T) {
	for text, want := range map[string]bool{
		"/": true, "/x": true, "/clusters/cl_a?tab=nodes#top": true, "/a//b": true, "/%2f%2fevil.example.com": true, "/.//evil.example.com": true, "/a:b@c": true,
		"": false, "x": false, "//": false, "//evil.example.com": false, "///evil.example.com": false, `/\evil.example.com`: false, `\\evil.example.com`: false,
		`/x\y`: false, "https://evil.example.com": false, "javascript:alert(1)": false, "/\t/evil.example.com": false, "/\n/evil.example.com": false, "\t//evil.example.com": false,
		" //evil.example.com": false, "/x\r\nSet-Cookie: a=b": false, "/x\x00": false, "/é": false, "/x y": false, "/\u2028/x": false, "?x": false, "#x": false,
		"/" + strings.Repeat("x", maxReturn): false, "/" + strings.Repeat("x", maxReturn-1): true,
	} {
		if got := LocalPath(text); got != want {
			t.Errorf("%.60q: %v", text, got)
		}
	}
}

// FuzzLocalPath: what counts as local stays where it is, for a browser as well as for net/url.
func FuzzLocalPath(f *testing.F) {
	for _, seed := range []string{"/", "/x", "//evil", `/\evil`, "/\t/evil", "/..//evil", "http:evil", "https:/evil", `\/evil`, "/%09/evil", "/;//evil", "/@evil"} {
		f.Add(seed)
	}
	base, _ := url.Parse("https://kubebyon.example.com/api/auth/oidc/callback")
	f.Fuzz(func(t *testing.T, text string) {
		if !LocalPath(text) {
			return
		}
		if leaves(text) {
			t.Errorf("a browser leaves with %q", text)
		}
		if to, err := url.Parse(text); err == nil { // where it fails, so would a redirect
			if to = base.ResolveReference(to); to.Scheme != base.Scheme || to.Host != base.Host || to.User != nil {
				t.Errorf("%q leads to %s", text, to)
			}
		}
	})
}

// leaves is how a browser reads a reference on an https page, after the URL standard: it trims, drops tabs and line ends, and
// takes a backslash for a slash.
func leaves(text string) bool {
	text = strings.TrimFunc(text, func(r rune) bool { return r <= ' ' })
	text = strings.NewReplacer("\t", "", "\n", "", "\r", "").Replace(text)
	text = strings.ReplaceAll(text, `\`, "/")
	if scheme, _, ok := strings.Cut(text, ":"); ok && scheme != "" && !strings.ContainsAny(scheme, "/?#") {
		return true // absolute, or for https: relative in a way that nobody needs
	}
	return strings.HasPrefix(text, "//")
}

func TestFlow(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	f := newFlow(now, "/x?y=z")
	again, ok := parseFlow(f.cookie(), now.Add(FlowLife-time.Second))
	if !ok || again.returnTo != "/x?y=z" || again.state() != f.state() || again.nonce() != f.nonce() || again.verifier() != f.verifier() {
		t.Fatalf("%+v, %v", again, ok)
	}
	parts := map[string]bool{f.state(): true, f.nonce(): true, f.verifier(): true, strings.Split(f.cookie(), ".")[0]: true}
	if other := newFlow(now, "/x?y=z"); len(parts) != 4 || parts[other.state()] || len(f.verifier()) != 43 {
		t.Errorf("%v", parts)
	}
	for _, at := range []time.Time{now.Add(FlowLife), now.Add(-time.Second)} {
		if _, ok := parseFlow(f.cookie(), at); ok {
			t.Errorf("it counts at %v", at.Sub(now))
		}
	}
	seed, rest, _ := strings.Cut(f.cookie(), ".")
	_, path, _ := strings.Cut(rest, ".")
	for _, wrong := range []string{"", ".", "..", seed, f.cookie() + ".", seed[1:] + "." + rest, seed + ".x." + path, seed + ".1800000300." + "Ly9ldmls", seed + "." + rest + "=", strings.Repeat("x", 5000)} {
		if _, ok := parseFlow(wrong, now); ok {
			t.Errorf("%.80q is a flow", wrong)
		}
	}
	longer, ok := parseFlow(seed+".1800000300."+path, now)
	if !ok || longer.state() == f.state() {
		t.Error("a changed end keeps its state")
	}
}

// FuzzFlow: a cookie of anybody's making is no flow, or one that returns to a local path and reads back as itself.
func FuzzFlow(f *testing.F) {
	now := time.Unix(1_800_000_000, 0)
	f.Add(newFlow(now, "/x").cookie())
	f.Add("..")
	f.Fuzz(func(t *testing.T, text string) {
		if found, ok := parseFlow(text, now); ok {
			if !LocalPath(found.returnTo) {
				t.Errorf("%q returns to %q", text, found.returnTo)
			}
			if again, ok := parseFlow(found.cookie(), now); !ok || again.state() != found.state() {
				t.Errorf("%q does not read back", text)
			}
		}
	})
}

func TestCheckURL(t *testing.T) {
	for address, want := range map[string]bool{
		"https://id.example.com": true, "https://id.example.com/realms/x/": true, "http://localhost:5556": true, "http://127.0.0.1:1/dex": true, "http://[::1]:1": true,
		"": false, "id.example.com": false, "http://id.example.com": false, "http://localhost.example.com": false, "http://127.0.0.1.example.com": false,
		"ftp://localhost": false, "https://": false, "https://user:pass@id.example.com": false, "https://id.example.com/#x": false, "https:id.example.com": false,
		"javascript:alert(1)": false, "https://id.example.com:port": false,
	} {
		if err := CheckURL(address); (err == nil) != want {
			t.Errorf("%q: %v", address, err)
		}
	}
}
