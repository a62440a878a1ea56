package cluster

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Domains are the names that the operator keeps, and those that it gives out. All are as ParseDomain gives them.
type Domains struct {
	// Console is where people log in, or empty. Cookies and pages of the same registrable domain could reach it, so that no
	// tenant has a name in there, but under Base.
	Console string
	// Base is what clusters that name no host get a name under, or empty.
	Base string
	// Reserved are nobody's, with everything beneath them.
	Reserved []string
}

// maxBase leaves room for the label of a cluster and the dot.
const maxBase = 253 - 1 - maxVClusterName - 1 - givenSuffix

// givenSuffix is how many random characters a name that is given out ends in: whoever knows a cluster's name does not know it.
const givenSuffix = 5

// ParseDomain gives a DNS name of at least two labels in its canonical form: lower case, without the trailing dot.
func ParseDomain(raw string) (string, error) {
	name := strings.TrimSuffix(strings.ToLower(strings.TrimSpace(raw)), ".")
	if text, action := wrongName(name); text != "" {
		return "", fmt.Errorf("%s: %s", text, action)
	}
	if !strings.Contains(name, ".") {
		return "", errors.New("it has one label alone")
	}
	return name, nil
}

// Check refuses a base under which no name could be given out.
func (d Domains) Check() error {
	switch {
	case d.Base == "":
		return nil
	case len(d.Base) > maxBase:
		return fmt.Errorf("it has %d characters, and only %d leave room for a cluster's name", len(d.Base), maxBase)
	case within(d.Base, d.Console):
		return errors.New("it is the console's domain, or beneath it, where no tenant may be")
	}
	for _, reserved := range d.Reserved {
		if within(d.Base, reserved) {
			return fmt.Errorf("it is beneath %s, which is reserved", reserved)
		}
	}
	return nil
}

// refuse fails with control_plane_host_reserved for a name that no tenant may have.
func (d Domains) refuse(host string) error {
	refused := fault.New(fault.Invalid, "control_plane_host_reserved", "the domain %s is kept by the operator of this installation", host).In(hostField)
	if d.Base != "" {
		refused = refused.Do("choose a domain of your own, or leave control_plane_host out and get a name under %s", d.Base)
	} else {
		refused = refused.Do("choose a domain of your own")
	}
	if host == d.Base || d.Console != "" && (within(host, d.Console) || within(d.Console, host)) {
		return refused
	}
	for _, reserved := range d.Reserved {
		if within(host, reserved) {
			return refused
		}
	}
	if d.Console != "" && !within(host, d.Base) && sameSite(host, d.Console) {
		return refused
	}
	return nil
}

// give makes a name for a cluster; there must be a base.
func (d Domains) give(vcluster, random string) string {
	return vcluster + "-" + random[:givenSuffix] + "." + d.Base
}

// within holds for the domain itself and for every name beneath it; nothing is within no domain.
func within(name, domain string) bool {
	return domain != "" && (name == domain || strings.HasSuffix(name, "."+domain))
}

// sameSite holds for two names that browsers count as one site: a cookie of one may be meant for the other.
func sameSite(a, b string) bool {
	siteA, errA := publicsuffix.EffectiveTLDPlusOne(a)
	siteB, errB := publicsuffix.EffectiveTLDPlusOne(b)
	return errA == nil && errB == nil && siteA == siteB
}

// wrongName says in words what keeps a lower-case name without its trailing dot from being a DNS name, and what to do; both are
// empty where nothing does. A name is LDH labels whose last one is no number: else 127.1 or 0x7f000001 would pass here and be
// an address to the resolver.
func wrongName(name string) (text, action string) {
	action = "give a DNS name such as k8s.example.com"
	labels := strings.Split(name, ".")
	switch {
	case name == "":
		return "it is empty", action
	case strings.IndexFunc(name, func(r rune) bool { return r > 0x7f }) >= 0:
		if ascii := punycode(name); ascii != "" {
			action = "write it as " + ascii
		}
		return "it holds letters other than a to z", action
	case strings.Contains(name, "*"):
		return "it is a wildcard, and a cluster has one name", action
	case strings.Contains(name, "_"):
		return "it holds an underscore, which no host's name may", "write it with - in the place of _"
	case len(name) > 253:
		return fmt.Sprintf("it has %d characters, and a DNS name has at most 253", len(name)), action
	}
	for _, label := range labels {
		switch {
		case label == "":
			return "it has an empty label: a dot at its beginning, or two dots together", action
		case len(label) > 63:
			return fmt.Sprintf("its label %.20s… has %d characters, and a label has at most 63", label, len(label)), action
		case label[0] == '-' || label[len(label)-1] == '-':
			return "one of its labels begins or ends with -", action
		case strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "":
			return "it holds characters other than a-z, 0-9, - and dots", action
		}
	}
	if last := labels[len(labels)-1]; strings.Trim(last, "0123456789") == "" || isHexNumber(last) {
		return "its last label is a number, as in an address", action
	}
	return "", ""
}

// punycode is the name in letters that DNS knows, or empty. What is far longer than any name is not looked at: it would take
// the square of its length.
func punycode(name string) string {
	if len(name) > 4*253 {
		return ""
	}
	ascii, err := idna.Lookup.ToASCII(name)
	if err != nil {
		return ""
	}
	if wrong, _ := wrongName(ascii); wrong != "" {
		return ""
	}
	return ascii
}

func isHexNumber(label string) bool {
	digits, found := strings.CutPrefix(label, "0x")
	return found && strings.Trim(digits, "0123456789abcdef") == ""
}
