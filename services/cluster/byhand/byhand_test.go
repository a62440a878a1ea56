package byhand_test

import (
	"bytes"
	"net/netip"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubebyon/kubebyon/services/cluster/byhand"
	"github.com/kubebyon/kubebyon/services/cluster/chart"
)

func TestObjects(t *testing.T) {
	text, err := byhand.ControlPlane("acme", "acme", netip.MustParseAddr("192.0.2.7"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"kind: StatefulSet", "name: acme-pki", "192.0.2.7"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the control plane lacks %q", want)
		}
	}
	ca, err := os.ReadFile("../internal/tenantsetup/testdata/ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	pki := &corev1.Secret{Data: map[string][]byte{chart.CACertKey: ca}}
	text, err = byhand.Tenant(pki, netip.MustParseAddrPort("192.0.2.7:31443"))
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte("\n---\n")); n < 20 {
		t.Errorf("%d objects for the tenant", n+1)
	}
	for _, want := range []string{"kind: ClusterRoleBinding", "name: kube-flannel-ds", "name: coredns", "port: 31443"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the tenant lacks %q", want)
		}
	}
}
