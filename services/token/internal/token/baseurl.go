package token

import (
	"net/url"
	"strings"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// baseURL checks the address at which machines reach us and gives it without a trailing slash. It ends up inside
// double quotes in a command that people paste into a root shell, so only characters that no shell reads are let through.
func baseURL(text string) (string, error) {
	if text == "" {
		return "", fault.New(fault.Precondition, "join_base_url_unset", "no address is set at which machines reach this KubeBYON").
			Do("an administrator sets join_base_url in the system settings, for example https://kubebyon.example.com")
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return "", badBase("it is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return "", badBase("it must begin with http:// or https://")
	case u.User != nil:
		return "", badBase("it must not hold a user name or password")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.Contains(text, "#"):
		return "", badBase("it must not have a query or a fragment")
	case u.Hostname() == "":
		return "", badBase("it has no host")
	case !plain(u.Host, ".-:[]") || !plain(u.EscapedPath(), "/.-_~"):
		return "", badBase("its host and path may hold letters, digits and . - _ ~ alone")
	}
	return u.Scheme + "://" + u.Host + strings.TrimRight(u.EscapedPath(), "/"), nil
}

func badBase(why string) error {
	return fault.New(fault.Precondition, "join_base_url_invalid", "the address at which machines reach this KubeBYON cannot be used: %s", why).
		Do("an administrator corrects join_base_url in the system settings, for example https://kubebyon.example.com")
}

func plain(s, more string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte(more, c) < 0 {
			return false
		}
	}
	return true
}
