package settings

import (
	"testing"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

func TestBaseURL(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"   ", ""},
		{"https://kubebyon.example.com", "https://kubebyon.example.com"},
		{"https://kubebyon.example.com/", "https://kubebyon.example.com"},
		{" HTTPS://KubeBYON.example.com// ", "https://kubebyon.example.com"},
		{"http://198.18.0.1:8080", "http://198.18.0.1:8080"},
		{"http://[2001:db8::1]:8080/", "http://[2001:db8::1]:8080"},
		{"https://example.com/kube/byon/", "https://example.com/kube/byon"},
		{"http://localhost", "http://localhost"},
	} {
		got, err := baseURL("join_base_url", c.in)
		if err != nil || got != c.want {
			t.Errorf("baseURL(%q) = %q, %v; want %q", c.in, got, err, c.want)
		}
	}
}

func TestBaseURLRefuses(t *testing.T) {
	for _, in := range []string{
		"kubebyon.example.com", "//example.com", "/path", "ftp://example.com", "javascript:alert(1)", "https:example.com",
		"https://", "https:///path", "https://:8080", "https://user@example.com", "https://user:password@example.com", "https://@example.com",
		"https://example.com?", "https://example.com?a=b", "https://example.com#", "https://example.com/#x", "https://example.com:0",
		"https://example.com:70000", "https://example.com:", "https://example.com:http", "https://exa mple.com", "https://example.com/a b",
		"https://example.com/'$(id)'", "https://example.com/`id`", "https://example.com/$HOME", "https://example.com/\"", "https://example.com/;id",
		"https://example.com/a//b", "https://example.com/../x", "https://example.com/./x", "https://example.com/%2e%2e", "https://exämple.com",
		"https://-example.com", "https://example.com-", "https://$(id).example.com", "https://example.com\nHost: x", "https://example.com/\x00",
		"https://[::1", "https://[fe80::1%25eth0]", "https://" + string(make([]byte, 3000)),
	} {
		got, err := baseURL("join_base_url", in)
		if f := fault.From(err); err == nil || f.Kind != fault.Invalid || f.Code != "url_invalid" || f.Field != "join_base_url" {
			t.Errorf("baseURL(%.80q) = %q, %v; want a refusal", in, got, err)
		}
	}
}
