package app

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubebyon/kubebyon/pkg/backing"
	"github.com/kubebyon/kubebyon/pkg/config"
	"github.com/kubebyon/kubebyon/services/edge/internal/dataplane"
)

// Config of the process, from the environment. LoadConfig fills it, and what it has read from files.
type Config struct {
	config.Common
	backing.Settings

	Provider    string          `env:"KUBEBYON_PUBLIC_ACCESS_PROVIDER" envDefault:"haproxy" enum:"haproxy"`
	BindAddr    config.HostPort `env:"KUBEBYON_HAPROXY_BIND_ADDR" envDefault:":443"`
	AddressType string          `env:"KUBEBYON_HAPROXY_NODE_ADDRESS_TYPE" envDefault:"internal" enum:"internal|external"`
	ProbeAddr   config.HostPort `env:"KUBEBYON_HAPROXY_PROBE_ADDR"`

	// The embedded data plane, where no DataPlaneURL is set.
	Binary   string `env:"KUBEBYON_HAPROXY_BINARY" envDefault:"haproxy" accepts:"the name or the path of the program"`
	StateDir string `env:"KUBEBYON_HAPROXY_STATE_DIR" accepts:"the path of a folder, which is made"`

	DataPlaneURL          string `env:"KUBEBYON_HAPROXY_DATAPLANE_URL" accepts:"the address of a Data Plane API, such as http://127.0.0.1:5555, without user and password"`
	DataPlaneUser         string `env:"KUBEBYON_HAPROXY_DATAPLANE_USER"`
	DataPlanePasswordFile string `env:"KUBEBYON_HAPROXY_DATAPLANE_PASSWORD_FILE" accepts:"the path of a file that holds the password alone"`
	DataPlaneCAFile       string `env:"KUBEBYON_HAPROXY_DATAPLANE_CA_FILE" accepts:"the path of a file with PEM certificates"`

	MapAbove          int `env:"KUBEBYON_HAPROXY_MAP_ABOVE" envDefault:"250" accepts:"the number of routes above which one map replaces a rule per route: a whole number from 1"`
	SourceRate        int `env:"KUBEBYON_HAPROXY_SOURCE_RATE" envDefault:"1000" accepts:"new connections of one address in ten seconds: a whole number from 1"`
	SourceConnections int `env:"KUBEBYON_HAPROXY_SOURCE_CONNECTIONS" envDefault:"5000" accepts:"open connections of one address: a whole number from 1"`
	RouteRate         int `env:"KUBEBYON_HAPROXY_ROUTE_RATE" envDefault:"2000" accepts:"new connections to one domain in ten seconds: a whole number from 1"`
	RouteConnections  int `env:"KUBEBYON_HAPROXY_ROUTE_CONNECTIONS" envDefault:"10000" accepts:"open connections to one domain: a whole number from 1"`

	ConsoleDomain   string   `env:"KUBEBYON_CONSOLE_DOMAIN" accepts:"the console's domain, such as console.example.com"`
	ConsoleUpstream []string `env:"KUBEBYON_CONSOLE_UPSTREAM" accepts:"where the gateways serve TLS, such as 127.0.0.1:8443, several separated by commas"`

	dataPlanePassword string
	dataPlaneCA       []byte
}

// LoadConfig reads the settings, and the files that they name; its error is one line that names the variable.
func LoadConfig(lookup func(string) (string, bool)) (Config, error) {
	cfg, err := config.Load[Config](lookup)
	if err != nil {
		return cfg, err
	}
	for name, value := range map[string]int{
		"KUBEBYON_HAPROXY_MAP_ABOVE": cfg.MapAbove, "KUBEBYON_HAPROXY_SOURCE_RATE": cfg.SourceRate, "KUBEBYON_HAPROXY_SOURCE_CONNECTIONS": cfg.SourceConnections,
		"KUBEBYON_HAPROXY_ROUTE_RATE": cfg.RouteRate, "KUBEBYON_HAPROXY_ROUTE_CONNECTIONS": cfg.RouteConnections,
	} {
		if value < 1 {
			return cfg, fmt.Errorf("%s: %d is too small; it accepts a whole number from 1", name, value)
		}
	}
	if err := checkBind(string(cfg.BindAddr)); err != nil {
		return cfg, fmt.Errorf("KUBEBYON_HAPROXY_BIND_ADDR: %.80q %w; it accepts an IP address and a port, such as :443", cfg.BindAddr, err)
	}
	if cfg.StateDir == "" {
		cfg.StateDir = stateDir(lookup)
	} else if cfg.DataPlaneURL != "" {
		return cfg, errors.New("KUBEBYON_HAPROXY_STATE_DIR: it is of no use with KUBEBYON_HAPROXY_DATAPLANE_URL; set one of them")
	} else if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return cfg, fmt.Errorf("KUBEBYON_HAPROXY_STATE_DIR: %w; it accepts the path of a folder, which is made", err)
	}
	if err := cfg.checkConsole(); err != nil {
		return cfg, err
	}
	return cfg, cfg.readDataPlane()
}

func checkBind(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil || portOf(addr) == 0 {
		return errors.New("has no port that clients could know")
	}
	if ip, err := netip.ParseAddr(host); host != "" && host != "*" && (err != nil || ip.Zone() != "") {
		return errors.New("holds no IP address")
	}
	return nil
}

// stateDir is the system's for root, and the user's own for anybody else.
func stateDir(lookup func(string) (string, bool)) string {
	if os.Geteuid() == 0 {
		return "/var/lib/kubebyon/haproxy"
	}
	if dir, ok := lookup("XDG_STATE_HOME"); ok && filepath.IsAbs(dir) {
		return filepath.Join(dir, "kubebyon", "haproxy")
	}
	if home, ok := lookup("HOME"); ok && filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "kubebyon", "haproxy")
	}
	return filepath.Join(os.TempDir(), "kubebyon-"+strconv.Itoa(os.Getuid()), "haproxy")
}

var domain = regexp.MustCompile(`^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\.)+[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)

func (c *Config) checkConsole() error {
	c.ConsoleDomain = strings.TrimSuffix(strings.ToLower(c.ConsoleDomain), ".")
	if d := c.ConsoleDomain; d != "" && (len(d) > 253 || !domain.MatchString(d)) {
		return fmt.Errorf("KUBEBYON_CONSOLE_DOMAIN: %.80q is no domain; it accepts the console's domain, such as console.example.com", d)
	}
	if len(c.ConsoleUpstream) > 0 && c.ConsoleDomain == "" {
		return errors.New("KUBEBYON_CONSOLE_UPSTREAM: it is of no use without KUBEBYON_CONSOLE_DOMAIN; set that, or neither")
	}
	for _, at := range c.ConsoleUpstream {
		if host, _, err := net.SplitHostPort(at); err != nil || host == "" || portOf(at) == 0 {
			return fmt.Errorf("KUBEBYON_CONSOLE_UPSTREAM: %.80q is no host and port; it accepts where the gateways serve TLS, such as 127.0.0.1:8443, several separated by commas", at)
		}
	}
	return nil
}

// readDataPlane checks what belongs to a Data Plane API that is not ours.
func (c *Config) readDataPlane() error {
	if c.DataPlaneURL == "" {
		for name, value := range map[string]string{
			"KUBEBYON_HAPROXY_DATAPLANE_USER": c.DataPlaneUser, "KUBEBYON_HAPROXY_DATAPLANE_PASSWORD_FILE": c.DataPlanePasswordFile, "KUBEBYON_HAPROXY_DATAPLANE_CA_FILE": c.DataPlaneCAFile,
		} {
			if value != "" {
				return fmt.Errorf("%s: it is of no use without KUBEBYON_HAPROXY_DATAPLANE_URL; set that too", name)
			}
		}
		return nil
	}
	u, err := url.Parse(c.DataPlaneURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		// Not the value: it may hold a password.
		return errors.New("KUBEBYON_HAPROXY_DATAPLANE_URL: its value is not valid; it accepts the address of a Data Plane API, such as http://127.0.0.1:5555, without user and password")
	}
	if c.DataPlaneUser == "" || c.DataPlanePasswordFile == "" {
		return errors.New("KUBEBYON_HAPROXY_DATAPLANE_URL: a Data Plane API asks who calls; set KUBEBYON_HAPROXY_DATAPLANE_USER and KUBEBYON_HAPROXY_DATAPLANE_PASSWORD_FILE too")
	}
	password, err := readSmall(c.DataPlanePasswordFile)
	if err == nil && strings.TrimSpace(password) == "" {
		err = errors.New("the file is empty")
	}
	if err != nil {
		return fmt.Errorf("KUBEBYON_HAPROXY_DATAPLANE_PASSWORD_FILE: %w; it accepts the path of a file that holds the password alone", err)
	}
	c.dataPlanePassword = strings.TrimSpace(password)
	if c.DataPlaneCAFile == "" {
		return nil
	}
	roots, err := readSmall(c.DataPlaneCAFile)
	if err == nil && !x509.NewCertPool().AppendCertsFromPEM([]byte(roots)) {
		err = errors.New("the file holds no PEM certificate")
	}
	if err != nil {
		return fmt.Errorf("KUBEBYON_HAPROXY_DATAPLANE_CA_FILE: %w; it accepts the path of a file with PEM certificates", err)
	}
	c.dataPlaneCA = []byte(roots)
	return nil
}

// readSmall reads a file of at most 1 MiB.
func readSmall(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular() || info.Size() > 1<<20:
		return "", fmt.Errorf("%q is no regular file of at most 1 MiB", path)
	}
	text, err := os.ReadFile(path)
	return string(text), err
}

func portOf(hostPort string) uint16 {
	_, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return 0
	}
	return uint16(n)
}

func (c Config) nodeAddress() corev1.NodeAddressType {
	if c.AddressType == "external" {
		return corev1.NodeExternalIP
	}
	return corev1.NodeInternalIP
}

func (c Config) layout() dataplane.Settings {
	return dataplane.Settings{
		Bind: []string{string(c.BindAddr)}, MapAbove: c.MapAbove,
		SourceRate: c.SourceRate, SourceConns: c.SourceConnections, NameRate: c.RouteRate, NameConns: c.RouteConnections,
	}
}

// probeAt is where HAProxy takes connections as this process sees it, and how many proofs a second it may see: HAProxy leaves
// the loopback alone, and counts what comes from elsewhere.
func (c Config) probeAt() (addr string, perSecond int) {
	addr = string(c.ProbeAddr)
	if addr == "" {
		host, port, _ := net.SplitHostPort(string(c.BindAddr))
		if c.DataPlaneURL != "" {
			u, err := url.Parse(c.DataPlaneURL)
			if err == nil {
				host = u.Hostname()
			}
		}
		if ip, err := netip.ParseAddr(host); host == "" || host == "*" || err == nil && ip.IsUnspecified() {
			host = "127.0.0.1"
		}
		addr = net.JoinHostPort(host, port)
	}
	host, _, _ := net.SplitHostPort(addr)
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() || host == "localhost" {
		return addr, 0
	}
	return addr, max(1, c.SourceRate/20)
}
