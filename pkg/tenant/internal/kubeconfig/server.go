package kubeconfig

import (
	"errors"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/kubebyon/kubebyon/pkg/reach"
)

var dnsName = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)

// ValidHost accepts IP addresses and DNS names that could be a machine's. Loopback is left to whoever connects, who may
// allow it.
func ValidHost(h string) bool {
	if a, err := netip.ParseAddr(h); err == nil {
		return a.Zone() == "" && (a.Unmap().IsLoopback() || !reach.Forbidden(a))
	}
	h = strings.ToLower(h)
	if len(h) > 253 || !dnsName.MatchString(h) {
		return false
	}
	last := h[strings.LastIndexByte(h, '.')+1:]
	_, err := strconv.ParseUint(last, 0, 64)
	return err != nil // 127.1 and 0x7f000001 are addresses to some resolvers
}

// checkServer splits a server's URL; local means that it says localhost and must be replaced.
func checkServer(s string) (server string, local bool, err error) {
	u, err := url.Parse(s)
	if err != nil || len(s) > 1024 {
		return "", false, errors.New("its server is not a URL")
	}
	switch {
	case u.Scheme != "https":
		return "", false, errors.New("its server is not an https:// URL")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.ForceQuery || u.Opaque != "" || strings.Trim(u.Path, "/") != "":
		return "", false, errors.New("its server has more than a host and a port")
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", false, errors.New("its server has a port that is none")
	}
	h := strings.ToLower(u.Hostname())
	if a, err := netip.ParseAddr(h); h == "localhost" || (err == nil && a.Unmap().IsLoopback()) {
		return "", true, nil
	}
	if !ValidHost(h) {
		return "", false, errors.New("its server is neither an IP address nor a DNS name that a node could be reached by")
	}
	return "https://" + net.JoinHostPort(h, port), false, nil
}
