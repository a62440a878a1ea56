package cluster

import (
	"errors"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/reach"
)

func code(err error) string {
	var f *fault.Error
	if errors.As(err, &f) {
		return f.Code
	}
	return ""
}

func TestCleanName(t *testing.T) {
	for _, c := range []struct{ in, want, code string }{
		{"demo", "demo", ""},
		{"  demo  ", "demo", ""},
		{"Café am See", "Café am See", ""},
		{"Cafe\u0301", "Café", ""},
		{"集群", "集群", ""},
		{strings.Repeat("ß", 63), strings.Repeat("ß", 63), ""},
		{"", "", "cluster_name_required"},
		{" \t\n ", "", "cluster_name_required"},
		{strings.Repeat("x", 64), "", "cluster_name_too_long"},
		{"a\x00b", "", "cluster_name_unprintable"},
		{"a\nb", "", "cluster_name_unprintable"},
		{"a\u202eb", "", "cluster_name_unprintable"},
		{"a\u00a0b", "", "cluster_name_unprintable"},
		{"a\xffb", "", "cluster_name_unprintable"},
	} {
		got, err := cleanName(c.in)
		if got != c.want || code(err) != c.code {
			t.Errorf("cleanName(%q) = %q, %v; want %q, %q", c.in, got, err, c.want, c.code)
		}
	}
}

func TestVClusterName(t *testing.T) {
	for _, c := range []struct{ given, name, want, code string }{
		{"", "demo", "demo", ""},
		{"", "My Cluster_01!", "my-cluster-01", ""},
		{"", "Café", "cafe", ""},
		{"", "--a--", "a", ""},
		{"", "9lives", "c-9lives", ""},
		{"", strings.Repeat("a", 63), strings.Repeat("a", 44), ""},
		{"", strings.Repeat("a", 43) + " b", strings.Repeat("a", 43), ""},
		{"", "集群", "", "cluster_name_unusable"},
		{"", "!!!", "", "cluster_name_unusable"},
		{"Demo One", "x", "demo-one", ""},
		{"集", "x", "", "vcluster_name_unusable"},
		{"../../etc", "x", "etc", ""},
		{strings.Repeat("a", 45), "x", "", "vcluster_name_too_long"},
	} {
		got, err := vclusterName(c.given, c.name)
		if got != c.want || code(err) != c.code {
			t.Errorf("vclusterName(%q, %q) = %q, %v; want %q, %q", c.given, c.name, got, err, c.want, c.code)
		}
	}
}

func TestNamespaceName(t *testing.T) {
	p := Policy{ReservedNamespaces: []string{"platform-home"}}
	for _, c := range []struct{ given, vcluster, want, code string }{
		{"", "demo", "demo", ""},
		{"Team A", "demo", "team-a", ""},
		{"???", "demo", "", "namespace_unusable"},
		{strings.Repeat("n", 64), "demo", "", "namespace_too_long"},
		{"", "default", "", "namespace_reserved"},
		{"kube-system", "demo", "", "namespace_reserved"},
		{"KUBE_SYSTEM", "demo", "", "namespace_reserved"},
		{"kube-anything", "demo", "", "namespace_reserved"},
		{"kubebyon-system", "demo", "", "namespace_reserved"},
		{"local-path-storage", "demo", "", "namespace_reserved"},
		{"platform-home", "demo", "", "namespace_reserved"},
		{"kubernetes-fans", "demo", "kubernetes-fans", ""},
	} {
		got, err := p.namespaceName(c.given, c.vcluster)
		if got != c.want || code(err) != c.code {
			t.Errorf("namespaceName(%q, %q) = %q, %v; want %q, %q", c.given, c.vcluster, got, err, c.want, c.code)
		}
	}
}

func TestCleanHost(t *testing.T) {
	for _, c := range []struct {
		in   string
		mode clusterv1.AccessMode
		want string
		code string
	}{
		{"198.18.0.2", clusterv1.NodePort, "198.18.0.2", ""},
		{" 10.0.0.7 ", clusterv1.NodePort, "10.0.0.7", ""},
		{"2001:DB8::1", clusterv1.NodePort, "2001:db8::1", ""},
		{"::ffff:10.0.0.7", clusterv1.NodePort, "10.0.0.7", ""},
		{"K8s.Example.COM.", clusterv1.NodePort, "k8s.example.com", ""},
		{"host-1", clusterv1.NodePort, "host-1", ""},
		{"demo.example.com", clusterv1.LoadBalancer, "demo.example.com", ""},
		{"10.0.0.7", clusterv1.LoadBalancer, "", "host_must_be_domain"},
		{"2001:db8::1", clusterv1.LoadBalancer, "", "host_must_be_domain"},
		{"demo", clusterv1.LoadBalancer, "", "host_must_be_domain"},
		{"https://k8s.example.com", clusterv1.NodePort, "", "host_is_url"},
		{"k8s.example.com/path", clusterv1.NodePort, "", "host_is_url"},
		{"user@k8s.example.com", clusterv1.NodePort, "", "host_is_url"},
		{"k8s.example.com?x", clusterv1.NodePort, "", "host_is_url"},
		{"k8s.example.com:6443", clusterv1.NodePort, "", "host_has_port"},
		{"10.0.0.7:6443", clusterv1.NodePort, "", "host_has_port"},
		{"[2001:db8::1]", clusterv1.NodePort, "", "host_has_port"},
		{"[2001:db8::1]:443", clusterv1.NodePort, "", "host_has_port"},
		{"fe80::1%eth0", clusterv1.NodePort, "", "host_invalid"},
		{"a b", clusterv1.NodePort, "", "host_invalid"},
		{"a..b", clusterv1.NodePort, "", "host_invalid"},
		{"-a.b", clusterv1.NodePort, "", "host_invalid"},
		{"a_b.c", clusterv1.NodePort, "", "host_invalid"},
		{"exämple.com", clusterv1.NodePort, "", "host_invalid"},
		{"127.1", clusterv1.NodePort, "", "host_invalid"},
		{"2130706433", clusterv1.NodePort, "", "host_invalid"},
		{"0x7f000001", clusterv1.NodePort, "", "host_invalid"},
		{"0177.0.0.1", clusterv1.NodePort, "", "host_invalid"},
		{"10.0.0.256", clusterv1.NodePort, "", "host_invalid"},
		{strings.Repeat("a", 64) + ".com", clusterv1.NodePort, "", "host_invalid"},
		{"*.example.com", clusterv1.NodePort, "", "host_invalid"},
		{"$(id).com", clusterv1.NodePort, "", "host_invalid"},
		{"127.0.0.1", clusterv1.NodePort, "", "host_refused"},
		{"::1", clusterv1.NodePort, "", "host_refused"},
		{"::ffff:127.0.0.1", clusterv1.NodePort, "", "host_refused"},
		{"0.0.0.0", clusterv1.NodePort, "", "host_refused"},
		{"::", clusterv1.NodePort, "", "host_refused"},
		{"169.254.169.254", clusterv1.NodePort, "", "host_refused"},
		{"fe80::1", clusterv1.NodePort, "", "host_refused"},
		{"224.0.0.1", clusterv1.NodePort, "", "host_refused"},
		{"64:ff9b::169.254.169.254", clusterv1.NodePort, "", "host_refused"},
		{"2002:7f00:1::", clusterv1.NodePort, "", "host_refused"},
		{"255.255.255.255", clusterv1.NodePort, "", "host_refused"},
		{"100.100.100.200", clusterv1.NodePort, "", "host_refused"},
		{"localhost", clusterv1.NodePort, "", "host_refused"},
		{"x.localhost", clusterv1.NodePort, "", "host_refused"},
		{"metadata.google.internal", clusterv1.NodePort, "", "host_refused"},
		{"kubernetes.default.svc", clusterv1.NodePort, "", "host_refused"},
	} {
		got, err := Policy{}.cleanHost(c.in, c.mode)
		if got != c.want || code(err) != c.code {
			t.Errorf("cleanHost(%q, %s) = %q, %v; want %q, %q", c.in, c.mode, got, err, c.want, c.code)
		}
	}
	if got, err := (Policy{AllowLoopback: true}).cleanHost("127.0.0.1", clusterv1.NodePort); got != "127.0.0.1" || err != nil {
		t.Errorf("with AllowLoopback: %q, %v", got, err)
	}
}

var (
	dns1035 = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)
	dns1123 = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
)

func FuzzNames(f *testing.F) {
	for _, s := range []string{"demo", "Café", "集群", "a\x00", "--", "9", strings.Repeat("a-", 40), "K\u212a", "\u0130"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		name, err := cleanName(in)
		if err != nil {
			return
		}
		if again, err := cleanName(name); err != nil || again != name {
			t.Fatalf("cleaning %q again gives %q, %v", name, again, err)
		}
		if !utf8.ValidString(name) {
			t.Fatalf("%q is no UTF-8", name)
		}
		label, err := vclusterName("", name)
		if err != nil {
			return
		}
		if !dns1035.MatchString(label) || len(label) > maxVClusterName {
			t.Fatalf("%q became %q", in, label)
		}
		if again, err := vclusterName(label, "x"); err != nil || again != label {
			t.Fatalf("%q given as it is became %q, %v", label, again, err)
		}
		if ns, err := (Policy{}).namespaceName(in, label); err == nil && (!dns1123.MatchString(ns) || strings.HasPrefix(ns, "kube-") || ns == "default") {
			t.Fatalf("namespace %q of %q", ns, in)
		}
	})
}

func FuzzHost(f *testing.F) {
	for _, s := range []string{"10.0.0.1", "k8s.example.com", "[::1]:80", "http://x", "127.1", "0x7f.1", "fe80::1%1", "::ffff:7f00:1", "a.b."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		host, err := Policy{}.cleanHost(in, clusterv1.NodePort)
		if err != nil {
			return
		}
		if again, err := (Policy{}).cleanHost(host, clusterv1.NodePort); err != nil || again != host {
			t.Fatalf("cleaning %q again gives %q, %v", host, again, err)
		}
		if strings.ContainsAny(host, " /\\@?#[]%\"'$`\n\t") {
			t.Fatalf("%q became %q", in, host)
		}
		if addr, err := netip.ParseAddr(host); err == nil && reach.Forbidden(addr) {
			t.Fatalf("%q became %q", in, host)
		}
	})
}
