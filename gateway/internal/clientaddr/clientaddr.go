// Package clientaddr finds out which address a request comes from. It must never take a word for it from a peer that is no
// trusted proxy.
package clientaddr

import (
	"net/http"
	"net/netip"
	"strings"
)

// Proxies are the networks whose word about an address counts.
type Proxies []netip.Prefix

// Trust makes Proxies of networks as they are configured; an IPv4 network may be written as the IPv6 one that maps it.
func Trust(networks []netip.Prefix) Proxies {
	trusted := make(Proxies, 0, len(networks))
	for _, n := range networks {
		if n.Addr().Is4In6() && n.Bits() >= 96 {
			n = netip.PrefixFrom(n.Addr().Unmap(), n.Bits()-96)
		}
		trusted = append(trusted, n.Masked())
	}
	return trusted
}

// Client gives who a request comes from: IPv4 as IPv4, without a zone; the zero address where the peer's is not known.
//
// A trusted peer's X-Forwarded-For is read from its right end, all of its headers as one list, as long as each hop is itself a
// trusted proxy: the first that is not is the client. What is no address ends the walk at the last hop that was one: whatever stands
// further left was written by somebody unknown. X-Real-IP counts only where there is no X-Forwarded-For, and once.
func (p Proxies) Client(remoteAddr string, header http.Header) netip.Addr {
	client := parse(remoteAddr)
	if !p.trusts(client) {
		return client
	}
	forwarded := header["X-Forwarded-For"]
	if len(forwarded) == 0 {
		if told := header["X-Real-Ip"]; len(told) == 1 {
			if address := parse(trim(told[0])); address.IsValid() {
				return address
			}
		}
		return client
	}
	for i := len(forwarded) - 1; i >= 0; i-- {
		for rest, more := forwarded[i], true; more; {
			var hop string
			rest, hop, more = cutLast(rest)
			address := parse(trim(hop))
			if !address.IsValid() {
				return client
			}
			if client = address; !p.trusts(client) {
				return client
			}
		}
	}
	return client
}

func (p Proxies) trusts(address netip.Addr) bool {
	for _, network := range p {
		if network.Contains(address) {
			return true
		}
	}
	return false
}

// cutLast gives a list's last element and what stands before its comma; more says whether there is one.
func cutLast(list string) (before, last string, more bool) {
	if i := strings.LastIndexByte(list, ','); i >= 0 {
		return list[:i], list[i+1:], true
	}
	return "", list, false
}

func trim(s string) string { return strings.Trim(s, " \t") }

// parse takes an address in brackets or not, with a port or without, and gives the zero address for anything else.
func parse(s string) netip.Addr {
	address, err := netip.ParseAddr(s)
	if err != nil {
		if inner, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(inner, "]") {
			if address, err = netip.ParseAddr(strings.TrimSuffix(inner, "]")); err == nil && !address.Is6() {
				return netip.Addr{}
			}
		} else {
			var both netip.AddrPort
			both, err = netip.ParseAddrPort(s)
			address = both.Addr()
		}
	}
	if err != nil {
		return netip.Addr{}
	}
	return address.Unmap().WithZone("")
}

// LimitKey is whom a limit counts: an IPv4 address, or an IPv6 network of 64 bits, whose holder has every address in it.
func LimitKey(address netip.Addr) string {
	address = address.Unmap().WithZone("")
	if address.Is6() {
		network, _ := address.Prefix(64) // 64 bits are always possible
		return network.String()
	}
	return address.String()
}
