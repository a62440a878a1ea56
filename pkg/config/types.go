package config

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/kubebyon/kubebyon/pkg/telemetry"
)

// HostPort is an address to listen on or to dial: host:port, [IPv6]:port, or :port for every address.
type HostPort string

// UnmarshalText accepts what net.Listen would, with a numeric port.
func (h *HostPort) UnmarshalText(b []byte) error {
	host, port, err := net.SplitHostPort(string(b))
	if err != nil {
		return errors.New("it is not an address with a port")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return errors.New("its port is not a number from 0 to 65535")
	}
	if strings.ContainsAny(host, " \t\r\n/@") {
		return errors.New("its host is not a host name or an IP address")
	}
	*h = HostPort(b)
	return nil
}

// DSN names a PostgreSQL database and carries its password: it is never shown. string(d.Secret) gives the text.
type DSN struct{ telemetry.Secret }

// UnmarshalText accepts postgresql:// and postgres:// URLs. Its errors never repeat the value.
func (d *DSN) UnmarshalText(b []byte) error {
	s := string(b)
	if !strings.HasPrefix(s, "postgresql://") && !strings.HasPrefix(s, "postgres://") {
		return errors.New("it does not start with postgresql://")
	}
	if _, err := url.Parse(s); err != nil {
		return errors.New("it is not a URL") // the parser's own error repeats the value
	}
	d.Secret = telemetry.Secret(s)
	return nil
}
