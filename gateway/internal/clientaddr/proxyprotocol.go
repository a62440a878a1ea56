package clientaddr

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/pires/go-proxyproto"
)

// headerTime is how long a peer may take to say whom it speaks for.
const headerTime = 5 * time.Second

// Listen makes connections of listener come from whom the peer says that it speaks for, by the PROXY protocol, version 2. Its word
// counts where it is a trusted proxy or on this machine; it may also say nothing, and speaks for itself then. Of anybody else not a
// byte is read as such a header: it is garbage to the protocol that comes next, which ends the connection.
//
// A header that is malformed, of version 1, or about anything but a TCP connection fails the connection's first read.
func (p Proxies) Listen(listener net.Listener) net.Listener {
	return &proxyproto.Listener{
		Listener:          listener,
		ReadHeaderTimeout: headerTime,
		ConnPolicy: func(o proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
			if peer := parse(o.Upstream.String()); peer.IsLoopback() || p.trusts(peer) {
				return proxyproto.USE, nil
			}
			return proxyproto.SKIP, nil
		},
		ValidateHeader: func(h *proxyproto.Header) error {
			switch {
			case h.Version != 2:
				return errors.New("the PROXY protocol's version is not 2")
			case h.Command.IsLocal():
				return nil // a health check: the peer speaks for itself
			case h.TransportProtocol != proxyproto.TCPv4 && h.TransportProtocol != proxyproto.TCPv6:
				return errors.New("the PROXY protocol's header is not about TCP")
			}
			source, ok := h.SourceAddr.(*net.TCPAddr)
			if !ok {
				return errors.New("the PROXY protocol's header names no client")
			}
			if address, ok := netip.AddrFromSlice(source.IP); !ok || address.Unmap().IsUnspecified() {
				return errors.New("the PROXY protocol's header names no client")
			}
			return nil
		},
	}
}
