package charttest_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart/loader"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/kubebyon/kubebyon/services/cluster/chart/charttest"
)

func TestTheStandInHasTheVendorsSurface(t *testing.T) {
	path, err := charttest.WriteVCluster(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := loader.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../testdata/guide-values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]any{}
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	objects, err := charttest.RenderChart(loaded, values, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range charttest.VClusterObjects() {
		got := objects[want.Kind+"/"+want.Name]
		if got == nil {
			t.Errorf("no %s %s", want.Kind, want.Name)
			continue
		}
		labels := got.GetLabels()
		for key, value := range want.Labels {
			if labels[key] != value {
				t.Errorf("%s %s: label %s is %q, the vendor's is %q", want.Kind, want.Name, key, labels[key], value)
			}
		}
		ports, _, _ := unstructured.NestedSlice(got.Object, "spec", "ports")
		if len(ports) != len(want.Spec.Ports) {
			t.Errorf("%s %s: ports %v, the vendor's %v", want.Kind, want.Name, ports, want.Spec.Ports)
			continue
		}
		for i, port := range want.Spec.Ports {
			p := ports[i].(map[string]any)
			if fmt.Sprint(p["name"], p["port"], p["targetPort"]) != fmt.Sprint(port.Name, port.Port, port.TargetPort) {
				t.Errorf("%s %s: port %v, the vendor's %v", want.Kind, want.Name, p, port)
			}
		}
		if rules, _, _ := unstructured.NestedSlice(got.Object, "rules"); len(want.Rules) > 0 && !cmp.Equal(rules, want.Rules) {
			t.Errorf("%s %s: other rules than the vendor's", want.Kind, want.Name)
		}
	}
	if _, err := charttest.RenderChart(loaded, map[string]any{"controlplane": map[string]any{}}, nil); err == nil {
		t.Error("the stand-in takes unknown keys; the vendor's chart refuses them")
	}
}
