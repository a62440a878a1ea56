// Package reach says to which addresses a tenant may send our processes, and holds a dialer to it once a name has become an
// address. It must never resolve, dial or know what is reached.
package reach

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// ErrForbidden is the cause of what Control refuses.
var ErrForbidden = errors.New("an address that no tenant may send us to")

var (
	// metadata answers with a cloud's credentials to whoever asks from inside; the link-local one needs no mention.
	metadata = map[netip.Addr]bool{
		netip.MustParseAddr("100.100.100.200"): true, netip.MustParseAddr("192.0.0.192"): true,
		netip.MustParseAddr("fd00:ec2::254"): true, netip.MustParseAddr("168.63.129.16"): true,
	}
	thisNetwork = netip.MustParsePrefix("0.0.0.0/8")
	classE      = netip.MustParsePrefix("240.0.0.0/4")

	// carriers are IPv6 networks whose addresses lead to the IPv4 address that they hold, at the byte given.
	carriers = []struct {
		network netip.Prefix
		at      int
	}{
		{netip.MustParsePrefix("::/96"), 12},           // IPv4-compatible
		{netip.MustParsePrefix("::ffff:0:0:0/96"), 12}, // IPv4-translated
		{netip.MustParsePrefix("64:ff9b::/96"), 12},    // NAT64
		{netip.MustParsePrefix("2002::/16"), 2},        // 6to4
	}
)

// Forbidden reports whether an address is never a control plane's: loopback, link-local, unspecified, multicast, broadcast,
// reserved, and where clouds serve credentials, also where IPv6 only carries such an address. Private networks are allowed:
// host clusters stand in them.
func Forbidden(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	if !addr.IsValid() || addr.IsLoopback() || addr.IsUnspecified() || addr.IsMulticast() || addr.IsLinkLocalUnicast() ||
		metadata[addr] || thisNetwork.Contains(addr) || classE.Contains(addr) {
		return true
	}
	if addr.Is6() {
		bytes := addr.As16()
		for _, c := range carriers {
			if c.network.Contains(addr) && Forbidden(netip.AddrFrom4([4]byte(bytes[c.at:c.at+4]))) {
				return true
			}
		}
	}
	return false
}

// Control is for a net.Dialer: it sees each address that a name led to, right before it is connected to, so that a name
// which changes its mind gains nothing. What it refuses is the fault host_refused, precondition, because of ErrForbidden.
// allowLoopback is for tests on one machine.
func Control(allowLoopback bool) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("dial: %w", err)
		}
		if ip := at.Addr().Unmap(); Forbidden(ip) && (!allowLoopback || !ip.IsLoopback()) {
			return fault.New(fault.Precondition, "host_refused", "control_plane_host leads to an address at which no control plane can be").
				In("control_plane_host").Do("give the address of the host node as workers see it").Because(ErrForbidden)
		}
		return nil
	}
}
