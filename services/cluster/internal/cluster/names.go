package cluster

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

const (
	// maxName is what a person may call a cluster, in runes.
	maxName = 63
	// maxVClusterName leaves room for what Kubernetes and the charts append to it: a StatefulSet's
	// "-" + 10 characters in a label, "<name>-headless", "vc-workload-<name>".
	maxVClusterName = 44
	maxNamespace    = 63
)

// reservedNamespaces are never a tenant's, whether they exist or not. Names beginning with "kube-" or "kubebyon"
// are reserved too.
var reservedNamespaces = map[string]bool{
	"default": true, "local-path-storage": true, "vcluster-platform": true, "cert-manager": true,
	"ingress-nginx": true, "haproxy": true, "calico-system": true, "tigera-operator": true, "cattle-system": true,
	"metallb-system": true, "longhorn-system": true,
}

// cleanName checks what a person calls a cluster: 1 … 63 printable characters, blanks at the ends removed and
// composed to NFC, so that two names that look alike by composition are one.
func cleanName(raw string) (string, error) {
	name := strings.TrimSpace(raw)
	switch {
	case name == "":
		return "", fault.New(fault.Invalid, "cluster_name_required", "the cluster needs a name").In("name")
	case !utf8.ValidString(name):
		return "", fault.New(fault.Invalid, "cluster_name_unprintable", "the name is not valid UTF-8").In("name")
	}
	name = norm.NFC.String(name)
	if n := utf8.RuneCountInString(name); n > maxName {
		return "", fault.New(fault.Invalid, "cluster_name_too_long", "the name has %d characters; at most %d are allowed", n, maxName).
			In("name").Do("give a shorter name")
	}
	for _, r := range name {
		if !unicode.IsPrint(r) {
			return "", fault.New(fault.Invalid, "cluster_name_unprintable", "the name holds a character that cannot be printed (U+%04X)", r).In("name")
		}
	}
	return name, nil
}

// dnsLabel makes a DNS-1123 label of s: accents dropped, lower case, every run of other characters one "-", none at
// the ends. It is empty where nothing of s can stand in a label.
func dnsLabel(s string) string {
	var out strings.Builder
	dash := false
	for _, r := range norm.NFKD.String(strings.ToLower(s)) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			if dash && out.Len() > 0 {
				out.WriteByte('-')
			}
			dash = false
			out.WriteRune(r)
		case unicode.Is(unicode.Mn, r):
		default:
			dash = true
		}
	}
	return out.String()
}

// vclusterName gives the Helm release's name: a DNS-1035 label (Services carry it) of at most maxVClusterName. A
// given one that is too long is refused; one made from the cluster's name is cut.
func vclusterName(given, name string) (string, error) {
	if strings.TrimSpace(given) == "" {
		label := startWithLetter(dnsLabel(name))
		if label == "" {
			return "", fault.New(fault.Invalid, "cluster_name_unusable", "no Kubernetes name can be made from %q", name).
				In("name").Do("use at least one of a-z or 0-9 in the name, or give vcluster_name")
		}
		if len(label) > maxVClusterName {
			label = strings.TrimRight(label[:maxVClusterName], "-")
		}
		return label, nil
	}
	label := startWithLetter(dnsLabel(given))
	switch {
	case label == "":
		return "", fault.New(fault.Invalid, "vcluster_name_unusable", "no Kubernetes name can be made from this vcluster_name").
			In("vcluster_name").Do("use a-z, 0-9 and -")
	case len(label) > maxVClusterName:
		return "", fault.New(fault.Invalid, "vcluster_name_too_long", "the vcluster_name has %d characters; at most %d are allowed", len(label), maxVClusterName).
			In("vcluster_name")
	}
	return label, nil
}

func startWithLetter(label string) string {
	if label != "" && label[0] >= '0' && label[0] <= '9' {
		return "c-" + label
	}
	return label
}

// namespaceName gives the host cluster's namespace; where none is given it is the vcluster_name.
func (p Policy) namespaceName(given, vcluster string) (string, error) {
	field, label := "namespace", vcluster
	if strings.TrimSpace(given) == "" {
		field = "name"
	} else if label = dnsLabel(given); label == "" {
		return "", fault.New(fault.Invalid, "namespace_unusable", "no Kubernetes namespace can be made from this value").
			In(field).Do("use a-z, 0-9 and -")
	}
	if len(label) > maxNamespace {
		return "", fault.New(fault.Invalid, "namespace_too_long", "the namespace has %d characters; at most %d are allowed", len(label), maxNamespace).In(field)
	}
	if p.reserved(label) {
		return "", fault.New(fault.Invalid, "namespace_reserved", "the namespace %q belongs to the host cluster", label).
			In(field).Do("choose another namespace")
	}
	return label, nil
}

func (p Policy) reserved(namespace string) bool {
	if reservedNamespaces[namespace] || strings.HasPrefix(namespace, "kube-") || strings.HasPrefix(namespace, "kubebyon") {
		return true
	}
	for _, own := range p.ReservedNamespaces {
		if namespace == own {
			return true
		}
	}
	return false
}
