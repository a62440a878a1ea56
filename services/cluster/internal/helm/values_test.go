package helm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
)

// guide is the values file of the deployment guide, as it is.
const guide = `privateNodes:
  enabled: true
controlPlane:
  distro:
    k8s:
      enabled: true
      image:
        tag: v1.31.2
  coredns:
    embedded: false
  service:
    spec:
      type: NodePort
  proxy:
    extraSANs:
      - "10.0.0.7"
  statefulSet:
    resources:
      requests:
        cpu: 100m
        memory: 256Mi
        ephemeral-storage: 1Gi
networking:
  podCIDR: 10.64.0.0/16
  serviceCIDR: 10.128.0.0/16
`

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestGuideValuesAreKept(t *testing.T) {
	operator, err := ReadValues(write(t, "values.yaml", guide))
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckVCluster(operator); err != nil {
		t.Fatal(err)
	}
	before, _ := yaml.Marshal(operator)
	got := vclusterValues(operator, cluster.Cluster{Cluster: clusterv1.Cluster{ControlPlaneHost: "k8s.example.com"}})
	if after, _ := yaml.Marshal(operator); string(after) != string(before) {
		t.Error("the operator's values were changed in place")
	}
	want := map[string]any{}
	if err := yaml.Unmarshal([]byte(strings.Replace(guide, `- "10.0.0.7"`, `- "10.0.0.7"`+"\n      - k8s.example.com", 1)), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestValuesWithoutAFile(t *testing.T) {
	got := vclusterValues(map[string]any{}, cluster.Cluster{Cluster: clusterv1.Cluster{ControlPlaneHost: "10.0.0.7"}})
	want := map[string]any{
		"privateNodes": map[string]any{"enabled": true},
		"controlPlane": map[string]any{
			"proxy":   map[string]any{"extraSANs": []any{"10.0.0.7"}},
			"service": map[string]any{"spec": map[string]any{"type": "NodePort"}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A machine that joined by a host of before checks the certificate for that one.
func TestFormerHostsStayInTheCertificate(t *testing.T) {
	c := cluster.Cluster{Cluster: clusterv1.Cluster{ControlPlaneHost: "demo.example.com"}, FormerHosts: []string{"k8s.example.com", "10.0.0.7"}}
	operator := map[string]any{"controlPlane": map[string]any{"proxy": map[string]any{"extraSANs": []any{"k8s.example.com", "10.0.0.9"}}}}
	for name, values := range map[string]func(map[string]any) map[string]any{
		"vcluster": func(operator map[string]any) map[string]any { return vclusterValues(operator, c) },
		"upstream": func(operator map[string]any) map[string]any { return upstreamValues(operator, "v1.37.2", c) },
	} {
		for _, of := range []struct {
			operator map[string]any
			want     []any
		}{
			{map[string]any{}, []any{"demo.example.com", "k8s.example.com", "10.0.0.7"}},
			{operator, []any{"k8s.example.com", "10.0.0.9", "demo.example.com", "10.0.0.7"}},
		} {
			got, _ := dig(values(of.operator), "controlPlane", "proxy", "extraSANs")
			if diff := cmp.Diff(of.want, got); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	}
}

func TestBadValuesFiles(t *testing.T) {
	for name, text := range map[string]string{
		"list": "- a\n", "text": "just words\n", "broken": "a: [1\nsecret: hunter2\n", "twice": "a: 1\na: 2\n", "tabs": "a:\n\tb: 1\n",
	} {
		_, err := ReadValues(write(t, "values.yaml", text))
		if err == nil || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ReadValues(filepath.Join(t.TempDir(), "none.yaml")); err == nil {
		t.Error("a missing file is read")
	}
	if _, err := ReadValues(t.TempDir()); err == nil {
		t.Error("a folder is read")
	}
	if v, err := ReadValues(write(t, "values.yaml", "")); err != nil || v == nil {
		t.Errorf("an empty file: %v, %v", v, err)
	}
	for _, text := range []string{"privateNodes: {enabled: false}", "controlPlane: {service: {spec: {type: LoadBalancer}}}"} {
		values, err := ReadValues(write(t, "values.yaml", text))
		if err != nil {
			t.Fatal(err)
		}
		if CheckVCluster(values) == nil {
			t.Errorf("%s is taken", text)
		}
	}
}
