// Package joinscript makes the POSIX sh script that a machine owner runs to turn a Linux machine into a node of a
// tenant. The script is one static file; what differs per tenant goes in as single-quoted assignments, each value
// checked against what it may be. It must never put a value into the script that was not checked, and never let the
// script skip certificate checks.
package joinscript

import (
	"bytes"
	"crypto/x509"
	_ "embed"
	"encoding/pem"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

//go:embed join.sh
var source string

// The lines of join.sh between which the assignments stand.
const (
	paramsBegin = "\t# parameters: begin\n"
	paramsEnd   = "\t# parameters: end\n"
)

// Params is what one rendering of the script is made for.
type Params struct {
	APIServer         string // https://host:port, the address workers reach the tenant's API at
	CAPEM             string // the tenant's CA certificates, PEM; the only ones that the script trusts
	Token             string // bootstrap token, id.secret
	ClusterName       string // shown to the machine's owner only; characters that a terminal may act on become "_"
	ClusterID         string // cl_…
	KubernetesVersion string // v1.37.2
	ClusterDNS        string // IP address of the tenant's DNS service
	ClusterDomain     string // cluster.local
	MirrorURL         string // base of the operator's mirror, without a slash at its end; empty only without files
	MirrorFiles       []MirrorFile
}

// MirrorFile is one file of the operator's mirror, as the gateway's manifest lists it.
type MirrorFile struct {
	Name   string // flat, or one level: images/x.tar
	SHA256 string // 64 lower-case hex digits
	Size   int64  // bytes
}

// String leaves the token out, so that a Params in a log gives nothing away.
func (p Params) String() string {
	return "join script for " + p.ClusterID + " at " + p.APIServer
}

// GoString is String: %#v must not show the token either.
func (p Params) GoString() string { return p.String() }

var (
	tokenRE   = regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`)
	idRE      = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	versionRE = regexp.MustCompile(`^v[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}(-[0-9A-Za-z]+(\.[0-9A-Za-z]+)*)?$`)
	dnsNameRE = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$`)
	pathRE    = regexp.MustCompile(`^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*$`)
	fileRE    = regexp.MustCompile(`^(images/)?[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	shaRE     = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// Render gives the script for p. Every fault is invalid, with the code join_script_parameter and the parameter's
// name in Field; no part of the token appears in it.
func Render(p Params) ([]byte, error) {
	apiServer, apiHost, err := endpoint("APIServer", p.APIServer)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(apiServer, "https://") || apiServer != "https://"+apiHost {
		return nil, invalid("APIServer", "must be https://host:port")
	}
	ca, err := certificates(p.CAPEM)
	if err != nil {
		return nil, err
	}
	dns, err := netip.ParseAddr(p.ClusterDNS)
	if err != nil || dns.Zone() != "" {
		return nil, invalid("ClusterDNS", "must be an IP address")
	}
	files, err := fileList(p.MirrorFiles)
	if err != nil {
		return nil, err
	}
	var mirror string
	switch {
	case p.MirrorURL != "":
		if mirror, _, err = endpoint("MirrorURL", p.MirrorURL); err != nil {
			return nil, err
		}
	case len(p.MirrorFiles) > 0:
		return nil, invalid("MirrorURL", "must be given with MirrorFiles")
	}
	for _, c := range []struct {
		field, value string
		re           *regexp.Regexp
	}{
		{"Token", p.Token, tokenRE},
		{"ClusterID", p.ClusterID, idRE},
		{"KubernetesVersion", p.KubernetesVersion, versionRE},
		{"ClusterDomain", p.ClusterDomain, dnsNameRE},
	} {
		if !c.re.MatchString(c.value) {
			return nil, invalid(c.field, "must match "+c.re.String())
		}
	}
	if len(p.ClusterDomain) > 253 {
		return nil, invalid("ClusterDomain", "must be at most 253 characters")
	}
	name := display(p.ClusterName)
	if name == "" {
		name = p.ClusterID
	}

	head, rest, ok := strings.Cut(source, paramsBegin)
	if !ok {
		return nil, fault.New(fault.Internal, "join_script_template", "the join script has no place for its parameters")
	}
	_, tail, ok := strings.Cut(rest, paramsEnd)
	if !ok {
		return nil, fault.New(fault.Internal, "join_script_template", "the join script has no end of its parameters")
	}
	var b bytes.Buffer
	b.Grow(len(source) + len(ca) + len(files))
	b.WriteString(head)
	for _, a := range []struct{ name, value string }{
		{"api_server", apiServer},
		{"api_host", apiHost},
		{"ca_pem", ca},
		{"token", p.Token},
		{"cluster_name", name},
		{"cluster_id", p.ClusterID},
		{"k8s_version", p.KubernetesVersion},
		{"cluster_dns", dns.String()},
		{"cluster_domain", p.ClusterDomain},
		{"mirror_url", mirror},
		{"mirror_files", files},
	} {
		b.WriteString("\t" + a.name + "=" + quote(a.value) + "\n")
	}
	b.WriteString(tail)
	return b.Bytes(), nil
}

// quote makes s one word of sh, whatever it holds.
func quote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// display keeps what a person reads, on one line: letters, marks, digits and plain punctuation of any language.
// Control characters, direction marks and broken UTF-8 would let a name act on the terminal.
func display(s string) string {
	const most = 500
	n := 0
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		n++
		switch {
		case n > most:
			return -1
		case r == unicode.ReplacementChar:
			return '_'
		case unicode.IsLetter(r), unicode.IsMark(r), unicode.IsDigit(r), unicode.IsPunct(r), r == ' ', strings.ContainsRune("+=<>|~^$`", r):
			return r
		default:
			return '_'
		}
	}, s))
}

// endpoint checks an http or https URL of a host, a port and a plain path, and gives it back in its normal form
// together with host:port.
func endpoint(field, raw string) (normal, hostport string, err error) {
	u, parseErr := url.Parse(raw)
	if parseErr != nil || len(raw) > 512 {
		return "", "", invalid(field, "must be a URL")
	}
	if (u.Scheme != "https" && u.Scheme != "http") || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.Opaque != "" || u.RawPath != "" || strings.Contains(raw, "#") {
		return "", "", invalid(field, "must be an http or https URL without user, query or fragment")
	}
	host := strings.ToLower(u.Hostname())
	if ip, ipErr := netip.ParseAddr(host); ipErr == nil && ip.Zone() == "" {
		host = ip.String()
	} else if !dnsNameRE.MatchString(host) || len(host) > 253 {
		return "", "", invalid(field, "must have an IP address or a DNS name as its host")
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	if n, portErr := strconv.ParseUint(port, 10, 16); portErr != nil || n == 0 {
		return "", "", invalid(field, "must have a port from 1 to 65535")
	}
	path := strings.TrimSuffix(u.Path, "/")
	if !pathRE.MatchString(path) {
		return "", "", invalid(field, "must have a path of plain characters")
	}
	hostport = net.JoinHostPort(host, port)
	return u.Scheme + "://" + hostport + path, hostport, nil
}

// certificates gives the PEM back in its normal form: certificates alone, each of which parses.
func certificates(text string) (string, error) {
	var out strings.Builder
	rest := []byte(text)
	for len(bytes.TrimSpace(rest)) > 0 {
		block, after := pem.Decode(rest)
		if block == nil || block.Type != "CERTIFICATE" {
			return "", invalid("CAPEM", "must hold PEM certificates alone")
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return "", invalid("CAPEM", "holds a certificate that does not parse")
		}
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes}))
		rest = after
	}
	if out.Len() == 0 {
		return "", invalid("CAPEM", "must hold a certificate")
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}

// fileList gives one line a file: SHA-256, size, name.
func fileList(files []MirrorFile) (string, error) {
	lines := make([]string, 0, len(files))
	seen := make(map[string]bool, len(files))
	for _, f := range files {
		switch {
		case !fileRE.MatchString(f.Name) || strings.Contains(f.Name, ".."):
			return "", invalid("MirrorFiles", "holds a name that is not a plain file name")
		case !shaRE.MatchString(f.SHA256):
			return "", invalid("MirrorFiles", "holds a SHA-256 that is not 64 lower-case hex digits")
		case f.Size < 0:
			return "", invalid("MirrorFiles", "holds a negative size")
		case seen[f.Name]:
			return "", invalid("MirrorFiles", "holds a name twice")
		}
		seen[f.Name] = true
		lines = append(lines, f.SHA256+" "+strconv.FormatInt(f.Size, 10)+" "+f.Name)
	}
	return strings.Join(lines, "\n"), nil
}

func invalid(field, text string) error {
	return fault.New(fault.Invalid, "join_script_parameter", "%s %s", field, text).In(field)
}
