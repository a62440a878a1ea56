package dataplane

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kubebyon/kubebyon/services/edge/internal/edge"
)

// Settings are what the frontend is made of besides the routes. A zero value is the default, a negative number switches a limit off.
type Settings struct {
	// Bind is where HAProxy listens, as address:port; the address may be left out. [":443"] by default.
	Bind []string
	// MapAbove is the number of routes above which one map replaces a line per route; 250 by default, negative: always.
	MapAbove int
	// SourceRate and SourceConns bound the new connections in ten seconds, and the open ones, of one address; 1,000 and
	// 5,000 by default. The loopback is exempt.
	SourceRate, SourceConns int
	// NameRate and NameConns do so for one route; 2,000 and 10,000 by default.
	NameRate, NameConns int
}

func (s Settings) withDefaults() (Settings, error) {
	if len(s.Bind) == 0 {
		s.Bind = []string{":443"}
	}
	for _, b := range s.Bind {
		if err := checkBind(b); err != nil {
			return s, err
		}
	}
	for value, preset := range map[*int]int{
		&s.MapAbove: 250, &s.SourceRate: 1000, &s.SourceConns: 5000, &s.NameRate: 2000, &s.NameConns: 10000,
	} {
		if *value == 0 {
			*value = preset
		}
	}
	return s, nil
}

func checkBind(bind string) error {
	host, port, err := net.SplitHostPort(bind)
	if err != nil {
		return fmt.Errorf("the address to listen on, %q, is no address:port: %w", bind, err)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("the address to listen on, %q, has no port from 1 to 65535", bind)
	}
	if host == "" || host == "*" {
		return nil
	}
	if addr, err := netip.ParseAddr(host); err != nil || addr.Zone() != "" {
		return fmt.Errorf("the address to listen on, %q, holds no IP address", bind)
	}
	return nil
}

// The names of our sections. The defaults begin with a dot because the Data Plane API sorts by name what it writes: others' proxies that
// name no defaults take the last ones, which must not become ours.
const (
	edgeDefaults  = ".kubebyon_edge"
	routeDefaults = ".kubebyon_route"
	voidDefaults  = ".kubebyon_void"
	frontendName  = "kubebyon"
	rejectName    = "kubebyon_reject"
	sourcesName   = "kubebyon_sources"
	namesName     = "kubebyon_names"

	frontendHeader = "frontend " + frontendName + " from " + edgeDefaults
	backendPrefix  = "be_"
	mapPrefix      = "kubebyon_"
	mapSuffix      = ".map"
)

var routeID = regexp.MustCompile(`^(?:cl_[a-z0-9]{20}|` + edge.Console + `)$`)

func isOurBackend(name string) bool {
	id, ok := strings.CutPrefix(name, backendPrefix)
	return ok && routeID.MatchString(id) || strings.HasPrefix(name, "kubebyon_")
}

// isOurs tells our sections by their headers.
func isOurs(header []string) bool {
	if len(header) < 2 {
		return false
	}
	switch name := header[1]; header[0] {
	case "defaults":
		return strings.HasPrefix(name, ".kubebyon_")
	case "frontend":
		return name == frontendName
	case "backend":
		return isOurBackend(name)
	}
	return false
}

// mode of the switching.
const (
	modeRules = "rules"
	modeMap   = "map"
)

// layout is everything of ours as it should be.
type layout struct {
	mode     string
	mapName  string // in map mode; it is made of the map's content
	mapText  string
	sections []section // without the switching rules
	rules    []string
	routes   map[string]edge.Route // by backend
}

// plan makes the layout of routes. What is not strictly valid never gets near the configuration.
func plan(s Settings, routes []edge.Route) (*layout, error) {
	routes = slices.Clone(routes)
	slices.SortFunc(routes, func(a, b edge.Route) int { return strings.Compare(a.ID, b.ID) })
	domains := make(map[string]bool, len(routes))
	l := &layout{mode: modeRules, routes: make(map[string]edge.Route, len(routes))}
	for _, r := range routes {
		if err := check(r); err != nil {
			return nil, err
		}
		name := backendPrefix + r.ID
		if _, twice := l.routes[name]; twice || domains[r.Domain] {
			return nil, fmt.Errorf("the route %s, %q, is there twice", r.ID, r.Domain)
		}
		domains[r.Domain], l.routes[name] = true, r
	}
	if s.MapAbove < 0 || len(routes) > s.MapAbove {
		l.mode = modeMap
		var b strings.Builder
		for _, r := range routes {
			b.WriteString(r.Domain + " " + backendPrefix + r.ID + "\n")
		}
		l.mapText = b.String()
		if l.mapText == "" {
			l.mapText = "# no routes\n"
		}
		sum := sha256.Sum256([]byte(l.mapText))
		l.mapName = mapPrefix + hex.EncodeToString(sum[:8]) + mapSuffix
	} else {
		for _, r := range routes {
			l.rules = append(l.rules, rule(r))
		}
	}
	l.sections = frame(s)
	for _, r := range routes {
		l.sections = append(l.sections, backend(r))
	}
	l.sections = append(l.sections, section{header: "defaults " + voidDefaults})
	return l, nil
}

func check(r edge.Route) error {
	if !routeID.MatchString(r.ID) {
		return fmt.Errorf("a route's ID is a cluster's or %s, not %q", edge.Console, r.ID)
	}
	if !isDomain(r.Domain) {
		return fmt.Errorf("the domain of the route %s is no lower-case DNS name: %q", r.ID, r.Domain)
	}
	if len(r.Targets) == 0 {
		return fmt.Errorf("the route %s leads nowhere", r.ID)
	}
	for _, t := range r.Targets {
		if !t.IsValid() || t.Port() == 0 || t.Addr().Zone() != "" || t.Addr().IsUnspecified() {
			return fmt.Errorf("the route %s leads to %s, which is no address", r.ID, t)
		}
	}
	return nil
}

var label = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$`)

// isDomain holds for the names that a TLS client sends and HAProxy compares; an address or a wildcard is none.
func isDomain(name string) bool {
	labels := strings.Split(name, ".")
	if len(name) > 253 || len(labels) < 2 {
		return false
	}
	for _, l := range labels {
		if !label.MatchString(l) {
			return false
		}
	}
	return strings.Trim(labels[len(labels)-1], "0123456789") != ""
}

func rule(r edge.Route) string {
	return "use_backend " + backendPrefix + r.ID + " " + "if " + test(r.Domain)
}

func test(domain string) string { return "{ req.ssl_sni -i " + domain + " }" }

func backend(r edge.Route) section {
	s := section{header: "backend " + backendPrefix + r.ID + " from " + routeDefaults}
	for i, t := range r.Targets {
		line := "server " + serverName(i) + " " + t.String()
		if r.ProxyProtocol {
			line += " send-proxy-v2"
		}
		s.lines = append(s.lines, line)
	}
	return s
}

func serverName(i int) string { return "n" + strconv.Itoa(i+1) }

// addressOf reads a server's address with or without the brackets of IPv6, and gives it with them.
func addressOf(word string) string {
	if a, err := netip.ParseAddrPort(word); err == nil {
		return a.String()
	}
	if i := strings.LastIndexByte(word, ':'); i > 0 {
		if a, err := netip.ParseAddrPort("[" + word[:i] + "]" + word[i:]); err == nil {
			return a.String()
		}
	}
	return word
}

// frame is what does not depend on the routes. The frontend's description holds its fingerprint.
func frame(s Settings) []section {
	common := []string{
		"mode tcp", "log global", "option tcplog", "option dontlognull",
		"option contstats", // or a watch that lives for days counts its bytes at its end
		// kubectl logs -f and watches are silent for long: HAProxy leaves them alone, and asks the kernel whether the other end lives.
		"option clitcpka", "option srvtcpka", "clitcpka-idle 60s", "clitcpka-intvl 15s", "clitcpka-cnt 4",
		"srvtcpka-idle 60s", "srvtcpka-intvl 15s", "srvtcpka-cnt 4",
		"timeout connect 5s", "timeout client 75s", "timeout server 75s", "timeout tunnel 12h",
	}
	route := append(slices.Clone(common), "option redispatch", "default-server check inter 10s fastinter 1s downinter 1s fall 3 rise 1")
	route = append(route, limit("content", "sc1", "be_name", namesName, "", s.NameRate, s.NameConns)...)
	front := make([]string, 0, 16)
	for _, b := range s.Bind {
		front = append(front, "bind "+b)
	}
	front = append(front, "tcp-request inspect-delay 5s")
	front = append(front, limit("connection", "sc0", "src", sourcesName, " unless { src 127.0.0.0/8 ::1 }", s.SourceRate, s.SourceConns)...)
	front = append(front,
		// These wait while a hello is not whole, and no longer. A record of TLS that begins otherwise, or few bytes of anything, might
		// still become a hello of SSL 2 for HAProxy: the first byte decides.
		"tcp-request content reject if { req.len ge 1 } !{ req.payload(0,1) -m bin 16 }",
		"tcp-request content accept if { req.ssl_hello_type 1 } { req.ssl_sni -m found }",
		"tcp-request content reject",
		"default_backend "+rejectName,
	)
	out := []section{
		{header: "defaults " + edgeDefaults, lines: common},
		{header: "defaults " + routeDefaults, lines: route},
		{header: frontendHeader, lines: front},
		{header: "backend " + rejectName + " from " + edgeDefaults, lines: []string{"tcp-request content reject"}},
		{
			header: "backend " + sourcesName + " from " + edgeDefaults,
			lines:  []string{"stick-table type ipv6 size 100k expire 10m store conn_cur,conn_rate(10s)"},
		},
		{
			header: "backend " + namesName + " from " + edgeDefaults,
			lines:  []string{"stick-table type string len 40 size 100k expire 10m store conn_cur,conn_rate(10s)"},
		},
	}
	sum := sha256.Sum256([]byte(render(out, nil)))
	out[2].lines = append([]string{"description kubebyon-layout-" + hex.EncodeToString(sum[:8])}, front...)
	return out
}

// limit tracks a key in a table and rejects what is too much of it.
func limit(where, counter, key, table, when string, rate, conns int) []string {
	if rate < 0 && conns < 0 {
		return nil
	}
	out := []string{"tcp-request " + where + " track-" + counter + " " + key + " table " + table + when}
	for _, one := range []struct {
		fetch string
		most  int
	}{{"conn_rate", rate}, {"conn_cur", conns}} {
		if one.most >= 0 {
			out = append(out, fmt.Sprintf("tcp-request %s reject if { %s_%s(%s) gt %d }", where, counter, one.fetch, table, one.most))
		}
	}
	return out
}

// all gives the sections with the switching rules; mapPath is where HAProxy finds the map.
func (l *layout) all(mapPath string) ([]section, error) {
	rules := l.rules
	if l.mode == modeMap {
		if mapPath == "" || strings.ContainsAny(mapPath, " \t\r\n\\\"'#,()[]%$") {
			return nil, errors.New("the Data Plane API keeps its maps where HAProxy's configuration cannot name them")
		}
		rules = []string{"use_backend %[req.ssl_sni,lower,map_str(" + mapPath + "," + rejectName + ")]"}
	}
	out := slices.Clone(l.sections)
	for i, s := range out {
		if s.header == frontendHeader {
			last := len(s.lines) - 1
			lines := append(slices.Clone(s.lines[:last]), rules...)
			out[i].lines = append(lines, s.lines[last])
		}
	}
	return out, nil
}
