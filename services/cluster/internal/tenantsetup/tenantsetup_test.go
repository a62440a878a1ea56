package tenantsetup_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubebyon/kubebyon/services/cluster/chart"
	"github.com/kubebyon/kubebyon/services/cluster/chart/charttest"
	"github.com/kubebyon/kubebyon/services/cluster/internal/tenantsetup"
)

func params(pki map[string][]byte) tenantsetup.Params {
	return tenantsetup.Params{
		Endpoint:          "198.18.0.2:31234",
		APIServers:        []netip.AddrPort{netip.MustParseAddrPort("198.18.0.2:31234")},
		CA:                pki[chart.CACertKey],
		PodCIDR:           netip.MustParsePrefix("10.64.0.0/16"),
		ServiceCIDR:       netip.MustParsePrefix("10.128.0.0/16"),
		KubernetesVersion: "v1.37.2",
	}
}

func TestApplyMakesATenantThatANodeCanJoin(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	tenant := charttest.Start(t, nil)
	cfg, err := tenantsetup.SetupConfig(tenant.Server, tenant.PKI)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := tenantsetup.Apply(ctx, cfg, params(tenant.PKI.Data)); err != nil {
		t.Fatal(err)
	}
	t.Logf("applied after %s", time.Since(began))
	if err := tenantsetup.WaitNodeCanJoin(ctx, cfg, 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	t.Logf("a node can join after %s", time.Since(began))
	began = time.Now()
	if err := tenantsetup.Apply(ctx, cfg, params(tenant.PKI.Data)); err != nil {
		t.Fatal(err)
	}
	t.Logf("applied again in %s", time.Since(began))
	client := kubernetes.NewForConfigOrDie(cfg)
	sas, _ := client.CoreV1().ServiceAccounts("kube-system").List(ctx, metav1.ListOptions{})
	for _, sa := range sas.Items {
		t.Log(sa.Name, sa.CreationTimestamp)
	}
}
