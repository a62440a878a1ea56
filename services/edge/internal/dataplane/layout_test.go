package dataplane

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kubebyon/kubebyon/services/edge/internal/edge"
)

var (
	one = netip.MustParseAddrPort("10.0.0.1:30443")
	two = netip.MustParseAddrPort("[fd00::2]:30443")
)

// TestOnlyStrictRoutesAreWritten: whatever else there is would be HAProxy's to read.
func TestOnlyStrictRoutesAreWritten(t *testing.T) {
	good := routeTo("a", "a.example.com", one, two)
	long := strings.Repeat("a", 63)
	for name, c := range map[string]struct {
		edit func(r *edge.Route)
		ok   bool
	}{
		"good":                  {func(*edge.Route) {}, true},
		"the console":           {func(r *edge.Route) { r.ID = edge.Console }, true},
		"a punycode domain":     {func(r *edge.Route) { r.Domain = "xn--bcher-kva.example" }, true},
		"a label of 63":         {func(r *edge.Route) { r.Domain = long + ".example" }, true},
		"a name of 253":         {func(r *edge.Route) { r.Domain = strings.Join([]string{long, long, long, strings.Repeat("a", 61)}, ".") }, true},
		"sslip.io":              {func(r *edge.Route) { r.Domain = "demo.203-0-113-7.sslip.io" }, true},
		"a label of 64":         {func(r *edge.Route) { r.Domain = long + "a.example" }, false},
		"a name of 254":         {func(r *edge.Route) { r.Domain = strings.Join([]string{long, long, long, strings.Repeat("a", 62)}, ".") }, false},
		"upper case":            {func(r *edge.Route) { r.Domain = "A.example.com" }, false},
		"a trailing dot":        {func(r *edge.Route) { r.Domain = "a.example.com." }, false},
		"a wildcard":            {func(r *edge.Route) { r.Domain = "*.example.com" }, false},
		"an underscore":         {func(r *edge.Route) { r.Domain = "a_b.example.com" }, false},
		"an IPv4 address":       {func(r *edge.Route) { r.Domain = "203.0.113.7" }, false},
		"an IPv6 address":       {func(r *edge.Route) { r.Domain = "::1" }, false},
		"one label":             {func(r *edge.Route) { r.Domain = "localhost" }, false},
		"no domain":             {func(r *edge.Route) { r.Domain = "" }, false},
		"an IDN":                {func(r *edge.Route) { r.Domain = "bücher.example" }, false},
		"a line end":            {func(r *edge.Route) { r.Domain = "a.example\nb.example" }, false},
		"a line end at the end": {func(r *edge.Route) { r.Domain = "a.example.com\n" }, false},
		"a blank":               {func(r *edge.Route) { r.Domain = "a.example.com }" }, false},
		"another ID":            {func(r *edge.Route) { r.ID = "cl_short" }, false},
		"an ID with more":       {func(r *edge.Route) { r.ID += "\nx" }, false},
		"an ID in upper case":   {func(r *edge.Route) { r.ID = strings.ToUpper(r.ID) }, false},
		"no target":             {func(r *edge.Route) { r.Targets = nil }, false},
		"no port":               {func(r *edge.Route) { r.Targets = []netip.AddrPort{netip.AddrPortFrom(one.Addr(), 0)} }, false},
		"a zero target":         {func(r *edge.Route) { r.Targets = []netip.AddrPort{{}} }, false},
		"a zone":                {func(r *edge.Route) { r.Targets = []netip.AddrPort{netip.MustParseAddrPort("[fe80::1%eth0]:1")} }, false},
		"everywhere":            {func(r *edge.Route) { r.Targets = []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:1")} }, false},
	} {
		r := good
		c.edit(&r)
		if _, err := plan(Settings{MapAbove: 10}, []edge.Route{r}); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := good
	other.ID = idOf("b")
	if _, err := plan(Settings{}, []edge.Route{good, other}); err == nil {
		t.Error("two routes have one domain")
	}
	other.ID, other.Domain = good.ID, "b.example.com"
	if _, err := plan(Settings{}, []edge.Route{good, other}); err == nil {
		t.Error("two routes have one ID")
	}
}

func TestSettingsAreChecked(t *testing.T) {
	for bind, ok := range map[string]bool{
		":443": true, "*:443": true, "127.0.0.1:8443": true, "[::]:443": true, "0.0.0.0:443": true,
		"443": false, ":0": false, ":65536": false, ":https": false, "localhost:443": false, ":443 ssl crt /x": false,
		"127.0.0.1:443\n  bind :80": false, "[fe80::1%eth0]:443": false, "": false,
	} {
		if _, err := (Settings{Bind: []string{bind}}).withDefaults(); (err == nil) != ok {
			t.Errorf("%q: %v", bind, err)
		}
	}
}

// theirs are configurations that somebody else wrote.
var theirs = map[string]string{
	"nothing":  "",
	"a global": "global\n    maxconn 100\n",
	"an ordinary one": `# _version=7

global
    maxconn 100   # so many

# Ours since 2019.
defaults
    mode http
    timeout connect 5s
    timeout client  5s
    timeout server  5s

# The page.
frontend page
    bind 127.0.0.1:1
    acl frontend path_beg /backend
    default_backend page

backend page
    server s1 127.0.0.1:1 # be_console?

# At the end.
`,
	"CRLF":                       "global\r\n    maxconn 100\r\n\r\ndefaults\r\n    mode tcp\r\n    timeout connect 5s\r\n    timeout client 5s\r\n    timeout server 5s\r\nbackend b\r\n    server s 127.0.0.1:1\r\n",
	"no final newline":           "defaults\n    mode tcp\n    timeout connect 5s\n    timeout client 5s\n    timeout server 5s\nbackend b\n    server s 127.0.0.1:1",
	"no final newline, no proxy": "global\n    maxconn 100",
	"conditions": `global
    maxconn 100
    .if version_atleast(2.4)
    nbthread 1
    .endif
    ulimit-n 2000
.if version_atleast(2.4)
backend b
    mode tcp
    timeout connect 5s
    timeout server 5s
    server s 127.0.0.1:1
.endif
`,
	"named defaults": `defaults base
    mode tcp
    timeout connect 5s
    timeout client 5s
    timeout server 5s
frontend f
    bind 127.0.0.1:1
    default_backend b
backend b
    server s 127.0.0.1:1
`,
	"a version and no global": "# _md5hash=0\n# _version=3\n\n# Theirs.\ndefaults\n    mode tcp\n    timeout connect 5s\n    timeout client 5s\n    timeout server 5s\n",
	"other kinds of sections": `userlist u
    user a insecure-password b
peers p
    peer me 127.0.0.1:2
resolvers r
    nameserver n 127.0.0.1:53
cache c
    total-max-size 4
ring g
    size 65536
`,
}

func merged(tb testing.TB, text string, above int, routes ...edge.Route) string {
	tb.Helper()
	s, err := Settings{Bind: []string{"127.0.0.1:3"}, MapAbove: above}.withDefaults()
	if err != nil {
		tb.Fatal(err)
	}
	l, err := plan(s, routes)
	if err != nil {
		tb.Fatal(err)
	}
	sections, err := l.all("/tmp/kubebyon_0.map")
	if err != nil {
		tb.Fatal(err)
	}
	return merge(text, sections)
}

func TestOthersConfigurationIsKept(t *testing.T) {
	t.Parallel()
	a, b := routeTo("a", "a.example.com", one, two), routeTo("b", "b.example.com", one)
	for name, text := range theirs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := merged(t, text, 10, a, b)
			if err := checkHAProxy(t, first); err != nil {
				t.Fatalf("%v\n%s", err, first)
			}
			if again := merged(t, first, 10, a, b); again != first {
				t.Errorf("a second time it becomes\n%s\ninstead of\n%s", again, first)
			}
			if _, lost := foreign(text, first); lost != "" {
				t.Errorf("lost: %q of\n%s", lost, first)
			}
			for _, p := range split(first) {
				if isOurs(p.words) && p.inside {
					t.Errorf("%s stands under a condition", p.key())
				}
			}
			if top := text[:metadata(text)]; !strings.HasPrefix(first, top) {
				t.Errorf("no longer begins with %q", top)
			}
			fewer := merged(t, first, 10, a)
			if strings.Contains(fewer, idOf("b")) || !strings.Contains(fewer, "use_backend be_"+idOf("a")+" if { req.ssl_sni -i a.example.com }") {
				t.Errorf("without one:\n%s", fewer)
			}
			// Once ours are there, nothing but ours changes any more.
			if gone, was := merge(fewer, nil), merge(first, nil); gone != was {
				t.Errorf("theirs: %q, were %q", gone, was)
			}
		})
	}
}

// foreign tells which sections of others in text are not in now byte for byte.
func foreign(text, now string) (kept int, lost string) {
	rest := now
	for _, p := range split(text) {
		if isOurs(p.words) {
			continue
		}
		whole := p.header + strings.Join(p.lines, "")
		at := strings.Index(rest, whole)
		if at < 0 {
			return kept, whole
		}
		rest = rest[at+len(whole):]
		kept++
	}
	return kept, ""
}

// TestOthersProxiesTakeTheirOwnDefaults: what stands before a proxy must not change what it is, and no warning is caused.
func TestOthersProxiesTakeTheirOwnDefaults(t *testing.T) {
	text := merged(t, "backend before\n    server s 127.0.0.1:1\n", 10, routeTo("a", "a.example.com", one)) +
		"\nbackend after\n    server s 127.0.0.1:1\n"
	last := ""
	for _, p := range split(text) {
		switch {
		case p.words == nil:
		case p.words[0] == "defaults":
			last = p.words[1]
		case p.words[1] == "before", p.words[1] == "after":
			if last != voidDefaults {
				t.Errorf("the backend %s takes the defaults %q", p.words[1], last)
			}
		}
	}
	if err := checkHAProxy(t, text); err != nil {
		t.Fatal(err)
	}
}

// TestOthersRulesInOurFrontendStandBeforeOurs in both modes, in the order that they had.
func TestOthersRulesInOurFrontendStandBeforeOurs(t *testing.T) {
	a := routeTo("a", "a.example.com", one)
	text := merged(t, "backend page\n    mode tcp\n    server s 127.0.0.1:1\n", 10, a)
	rule := "\tuse_backend page if theirs # ours\n"
	text = strings.Replace(text, "  default_backend kubebyon_reject\n",
		"  default_backend kubebyon_reject\n    acl theirs req.ssl_sni -i a.example.com page.example.com\n"+rule+"  maxconn 7\n", 1)
	for _, above := range []int{10, -1} {
		got := merged(t, text, above, a)
		lines := strings.SplitAfter(got, "\n")
		theirs := slices.Index(lines, rule)
		ours := slices.IndexFunc(lines, func(l string) bool {
			return strings.HasPrefix(l, "  use_backend be_") || strings.HasPrefix(l, "  use_backend %[")
		})
		if theirs < 1 || ours != theirs+1 || lines[theirs-1] != "    acl theirs req.ssl_sni -i a.example.com page.example.com\n" {
			t.Errorf("the rules stand at %d and %d of\n%s", theirs, ours, got)
		}
		if strings.Contains(got, "maxconn 7") {
			t.Errorf("a line that is nobody's was kept:\n%s", got)
		}
		if merged(t, got, above, a) != got {
			t.Errorf("a second time it is not the same")
		}
		if above > 0 {
			if err := checkHAProxy(t, got); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestEveryLayoutIsOneThatHAProxyTakes(t *testing.T) {
	t.Parallel()
	console := edge.Route{ID: edge.Console, Domain: "console.example.com", Targets: []netip.AddrPort{one}, ProxyProtocol: true}
	for name, s := range map[string]Settings{
		"default": {}, "map": {MapAbove: -1}, "no limits": {SourceRate: -1, SourceConns: -1, NameRate: -1, NameConns: -1},
		"several addresses": {Bind: []string{"127.0.0.1:3", "[::1]:3", "*:4"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := checkHAProxy(t, textOf(t, s, []edge.Route{routeTo("a", "a.example.com", one, two), console})); err != nil {
				t.Error(err)
			}
			if err := checkHAProxy(t, textOf(t, s, nil)); err != nil {
				t.Errorf("without routes: %v", err)
			}
		})
	}
}

// TestWhenTheAPIAndItsFileAreApart: single calls would then undo what stands in the file.
func TestWhenTheAPIAndItsFileAreApart(t *testing.T) {
	rest := "# _version=7\n\nglobal\n  maxconn 1\n"
	written := "# _md5hash=ddc23e9c16662fefcdaf6b56e68674d1\n" + rest
	for name, c := range map[string]struct {
		version int64
		text    string
		apart   bool
	}{
		"as it was written":    {7, written, false},
		"another version":      {8, written, true},
		"an edit by hand":      {7, written + "# by hand\n", true},
		"no digest":            {7, rest, false},
		"no version":           {1, "global\n", false},
		"no version, a later":  {2, "global\n", true},
		"a version further on": {7, "global\n# _version=7\n", true},
	} {
		if got := newSnapshot(c.version, c.text).apart; got != c.apart {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func FuzzMerge(f *testing.F) {
	for _, text := range theirs {
		f.Add(text, "a.example.com", idOf("a"))
	}
	f.Add("frontend kubebyon\n.endif\n  acl x\nuse_backend a\n#\n", "a.example.com\n", "cl_")
	f.Add(" \"frontend\" kubebyon\n\\\n'", "-a.example", "console")
	f.Add(merged(f, theirs["an ordinary one"], 10, routeTo("a", "a.example.com", one)), "b.example.com", idOf("b"))
	f.Fuzz(func(t *testing.T, text, domain, id string) {
		s, err := Settings{}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		l, err := plan(s, []edge.Route{{ID: id, Domain: domain, Targets: []netip.AddrPort{one}}})
		if err != nil {
			return
		}
		for _, r := range l.rules {
			if words := strings.Fields(r); len(words) != 8 || strings.ContainsAny(r, "\r\n\"'\\#$%") {
				t.Fatalf("a rule that is none: %q", r)
			}
		}
		sections, err := l.all("")
		if err != nil {
			t.Fatal(err)
		}
		var whole strings.Builder
		for _, p := range split(text) {
			whole.WriteString(p.lead + p.header + strings.Join(p.lines, ""))
		}
		if whole.String() != text {
			t.Fatalf("split and joined: %q", whole.String())
		}
		first := merge(text, sections)
		if again := merge(first, sections); again != first {
			t.Fatalf("not idempotent:\n%q\n%q", first, again)
		}
		if _, lost := foreign(text, first); lost != "" {
			t.Fatalf("lost %q of\n%q", lost, first)
		}
		now := newSnapshot(1, first)
		if todo := compare(now, l, sections); !todo.nothing() {
			t.Fatalf("what was written is not what should be: %+v\n%q", todo, first)
		}
	})
}
