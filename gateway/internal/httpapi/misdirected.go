package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// direct answers on the TLS port only what was meant for it: 421 where the request names another host than the handshake, or than
// the console's domain where that is set. A browser uses an open HTTP/2 connection for another name of the same certificate, and the
// name in the handshake is what led the connection here.
func (s *Server) direct(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil {
			next.ServeHTTP(w, r)
			return
		}
		if !agrees(r.TLS.ServerName, r.Host, s.domain) {
			if r.ProtoMajor == 1 {
				w.Header().Set("Connection", "close") // nothing else that comes this way is for us either
			}
			writeProblem(w, r, http.StatusMisdirectedRequest, keep(r, fault.New(fault.Invalid, "misdirected_request",
				"this connection was made for another host than the request is for").Do("open a new connection, with the host's name in the TLS handshake")))
			return
		}
		if s.domain != "" {
			// Neither subdomains, which may be tenants', nor preloading.
			w.Header().Set("Strict-Transport-Security", "max-age=31536000")
		}
		next.ServeHTTP(w, r)
	})
}

// agrees says whether a request for host may come over a connection whose handshake named server. Without a domain a client that
// asks for an IP address names none, as RFC 6066 has it.
func agrees(server, host, domain string) bool {
	name, ok := hostName(host)
	if !ok {
		return false
	}
	server = strings.ToLower(server)
	if domain != "" {
		return name == domain && server == domain
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return server == "" || server == name
	}
	return server == name
}

// hostName gives a Host header's name in lower case, without port, brackets and the root's dot. It fails for what is no name with
// an optional port.
func hostName(host string) (string, bool) {
	if strings.HasPrefix(host, "[") {
		inner, port, ok := strings.Cut(host[1:], "]")
		if port == "" {
			port = ":443"
		}
		address, err := netip.ParseAddr(inner)
		if !ok || err != nil || !address.Is6() || address.Zone() != "" || !strings.HasPrefix(port, ":") || !isPort(port[1:]) {
			return "", false
		}
		return address.String(), true
	}
	name := host
	if strings.Contains(host, ":") {
		var port string
		var err error
		if name, port, err = net.SplitHostPort(host); err != nil || !isPort(port) {
			return "", false
		}
	}
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	if name == "" || strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.' && r != '_'
	}) {
		return "", false
	}
	return name, true
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}
