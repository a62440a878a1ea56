package token

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract/tokenv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

func TestTokensHaveTheBootstrapShapeAndDiffer(t *testing.T) {
	shape, seen := regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`), map[string]bool{}
	for range 1000 {
		v, err := newValue(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if text := v.Reveal(); !shape.MatchString(text) || seen[text] {
			t.Fatalf("a bad or repeated token %q", text)
		}
		seen[v.Reveal()] = true
		if again, err := Parse(v.Reveal()); err != nil || again != v {
			t.Fatalf("its own token is not parsed: %v", err)
		}
	}
}

func TestDrawFavoursNoCharacter(t *testing.T) {
	// Every byte once: 252 = 7 x 36 are used, 7 times each character; the other four are dropped.
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(255 - i)
	}
	text, err := draw(io.MultiReader(bytes.NewReader(every), bytes.NewReader(make([]byte, 512))), 252)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range alphabet {
		if n := strings.Count(text, string(c)); n != 7 {
			t.Errorf("%q came %d times, not 7", c, n)
		}
	}
	if _, err := draw(iotestError{}, 4); err == nil {
		t.Error("a broken source of randomness went unnoticed")
	}
}

type iotestError struct{}

func (iotestError) Read([]byte) (int, error) { return 0, errors.New("no entropy") }

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"", ".", "abcdef", "abcdef.", "abcdef.0123456789abcde", "abcdef.0123456789abcdef0", "abcdef-0123456789abcdef",
		"ABCDEF.0123456789abcdef", "abcdef.0123456789abcdeF", "abcdef.0123456789abcde\n", "abcdé.0123456789abcdef",
		"abcdef.01234567 9abcdef", strings.Repeat("a", 1<<20),
	} {
		_, err := Parse(text)
		f := fault.From(err)
		if err == nil || f.Kind != fault.Unauthenticated || f.Code != "token_malformed" || f.Action == "" {
			t.Errorf("Parse(%.40q): %v", text, err)
		} else if len(text) > 1 && strings.Contains(err.Error(), text) {
			t.Errorf("the fault repeats %.40q", text)
		}
	}
}

func TestValuePrintsNoSecret(t *testing.T) {
	v, err := Parse("abcdef.canary0123456789")
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "v", v, "in", Script{Token: v})
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "v", v, "in", Script{Token: v})
	asJSON, err := json.Marshal(map[string]any{"v": v, "in": Script{Token: v}})
	if err != nil {
		t.Fatal(err)
	}
	out := log.String() + string(asJSON)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		out += fmt.Sprintf(verb+verb, v, Script{Token: v})
	}
	if strings.Contains(out, "canary") || strings.Contains(out, fmt.Sprintf("%x", "canary")) {
		t.Error("a secret half was printed:", out)
	}
	if !strings.Contains(out, "abcdef") {
		t.Error("not even the public half was printed:", out)
	}
}

func TestLifetime(t *testing.T) {
	n := func(i int64) *int64 { return &i }
	for _, c := range []struct {
		seconds *int64
		want    time.Duration
	}{
		{nil, 2 * time.Hour}, {n(60), time.Minute}, {n(7200), 2 * time.Hour}, {n(604800), 7 * 24 * time.Hour},
		{n(0), 0}, {n(-1), 0}, {n(59), 0}, {n(604801), 0}, {n(1 << 62), 0}, {n(-1 << 63), 0},
	} {
		got, err := lifetime(c.seconds)
		if c.want != 0 {
			if err != nil || got != c.want {
				t.Errorf("%v: %v, %v", c.seconds, got, err)
			}
			continue
		}
		if f := fault.From(err); err == nil || f.Kind != fault.Invalid || f.Code != "ttl_out_of_range" || f.Field != "ttl_seconds" {
			t.Errorf("%d: %v", *c.seconds, err)
		}
	}
}

func TestBaseURL(t *testing.T) {
	for in, want := range map[string]string{
		"https://kubebyon.example.com":   "https://kubebyon.example.com",
		"http://198.18.0.1:8080/":        "http://198.18.0.1:8080",
		"https://example.com/kubebyon//": "https://example.com/kubebyon",
		"http://[2001:db8::1]:8080":      "http://[2001:db8::1]:8080",
		"HTTPS://example.com":            "https://example.com",
	} {
		if got, err := baseURL(in); err != nil || got != want {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	for in, code := range map[string]string{
		"": "join_base_url_unset", "kubebyon.example.com": "join_base_url_invalid", "ftp://example.com": "join_base_url_invalid",
		"https://": "join_base_url_invalid", "https:///path": "join_base_url_invalid", "https://user:pw@example.com": "join_base_url_invalid",
		"https://example.com?x=1": "join_base_url_invalid", "https://example.com?": "join_base_url_invalid", "https://example.com#": "join_base_url_invalid",
		"https://example.com/$(reboot)": "join_base_url_invalid", "https://example.com/`reboot`": "join_base_url_invalid",
		`https://example.com/";reboot;"`: "join_base_url_invalid", "https://$(reboot)": "join_base_url_invalid",
		"https://example.com/a b": "join_base_url_invalid", "https://example.com/%24": "join_base_url_invalid",
		"https://example.com\nreboot": "join_base_url_invalid", "https://exa'mple.com": "join_base_url_invalid", "javascript:alert(1)": "join_base_url_invalid",
	} {
		_, err := baseURL(in)
		if f := fault.From(err); err == nil || f.Kind != fault.Precondition || f.Code != code || f.Action == "" {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestAdmit(t *testing.T) {
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	right, _ := Parse("abcdef.0123456789abcdef")
	wrong, _ := Parse("abcdef.0123456789abcdeg")
	other, _ := Parse("abcdef.aaaaaaaaaaaaaaaa")
	before := now.Add(-time.Minute)
	live := Record{ID: "tok_live", TokenID: "abcdef", Hash: right.Hash(), ExpiresAt: now.Add(time.Second)}
	over, ended := live, live
	over.ExpiresAt, ended.RevokedAt = now, &before
	both := over
	both.RevokedAt = &before
	twin := Record{ID: "tok_twin", TokenID: "abcdef", Hash: other.Hash(), ExpiresAt: now.Add(time.Second)}
	for name, c := range map[string]struct {
		records []Record
		given   Value
		id      string
		code    string
	}{
		"known":                     {[]Record{live}, right, "tok_live", ""},
		"two share the public half": {[]Record{twin, live}, right, "tok_live", ""},
		"the other of the two":      {[]Record{twin, live}, other, "tok_twin", ""},
		"none":                      {nil, right, "", "token_unknown"},
		"wrong secret":              {[]Record{live, twin}, wrong, "", "token_unknown"},
		"wrong secret, expired":     {[]Record{over}, wrong, "", "token_unknown"},
		"expired at that second":    {[]Record{over}, right, "", "token_expired"},
		"revoked":                   {[]Record{ended}, right, "", "token_revoked"},
		"revoked, then expired":     {[]Record{both}, right, "", "token_revoked"},
	} {
		got, err := admit(c.records, c.given, now)
		if c.code == "" {
			if err != nil || got.ID != c.id {
				t.Errorf("%s: %v, %v", name, got.ID, err)
			}
			continue
		}
		if f := fault.From(err); err == nil || f.Kind != fault.Unauthenticated || f.Code != c.code || f.Action == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStatus(t *testing.T) {
	now := time.Now()
	if got := (Record{ExpiresAt: now.Add(1)}).Status(now); got != tokenv1.Active {
		t.Error(got)
	}
}
