package charttest

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
	"github.com/kubebyon/kubebyon/services/cluster/chart"
)

// VClusterVersion is the vendor's chart whose surface is known here.
const VClusterVersion = "0.33.0"

// kubernetesVersion is what the stand-in runs, whatever the values ask: its images are those of the development host.
const kubernetesVersion = kubetest.Version

//go:embed testdata/vcluster-0.33.0.schema.json
var vclusterSchema []byte

//go:embed testdata/vcluster-0.33.0.objects.json
var vclusterObjects []byte

// VClusterSchema is the vendor's schema of its values.
func VClusterSchema() []byte { return vclusterSchema }

// Object is one of the vendor's rendered objects, for the release acme in the namespace vc-acme.
type Object struct {
	Kind   string            `json:"kind"`
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels"`
	Rules  []any             `json:"rules"`
	Spec   struct {
		ServiceName          string   `json:"serviceName"`
		Selector             any      `json:"selector"`
		VolumeClaimTemplates []string `json:"volumeClaimTemplates"`
		Ports                []struct {
			Name       string `json:"name"`
			Port       int    `json:"port"`
			TargetPort int    `json:"targetPort"`
			Protocol   string `json:"protocol"`
		} `json:"ports"`
	} `json:"spec"`
}

// VClusterObjects is what the vendor's chart renders for the values file of the deployment guide.
func VClusterObjects() []Object {
	var objects []Object
	if err := json.Unmarshal(vclusterObjects, &objects); err != nil {
		panic(err) // embedded
	}
	return objects
}

// WriteVCluster writes a chart into dir that has the name, version, schema and objects of the vendor's, and runs the
// upstream images behind them; KUBEBYON_VCLUSTER_CHART takes the path that it gives. Inside the tenant nobody plays the
// vendor's syncer: a test that waits for kube-system/kubeadm-config and kube-public/cluster-info makes them itself.
func WriteVCluster(dir string) (string, error) {
	source, err := chart.Files()
	if err != nil {
		return "", err
	}
	files := map[string]string{}
	err = fs.WalkDir(source, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(source, path)
		files[path] = string(data)
		return err
	})
	if err != nil {
		return "", err
	}
	edit := func(path, old, text string) {
		if !strings.Contains(files[path], old) {
			err = fmt.Errorf("%s has no %q any more", path, old)
		}
		files[path] = strings.ReplaceAll(files[path], old, text)
	}
	files["values.schema.json"] = string(vclusterSchema)
	edit("Chart.yaml", "name: kubebyon-upstream", "name: vcluster")
	edit("Chart.yaml", "version: 0.1.0", "version: "+VClusterVersion)
	edit("templates/control-plane.yaml", `"tag" $k8s.image.tag`, fmt.Sprintf(`"tag" %q`, kubernetesVersion))
	edit("templates/network.yaml", "    {{- with $service.labels }}", "    vcluster.loft.sh/service: \"true\"\n    {{- with $service.labels }}")
	edit("templates/network.yaml", "    nodePort: {{ . | int }}\n    {{- end }}\n", `    nodePort: {{ . | int }}
    {{- end }}
  - name: kubelet
    port: 10250
    targetPort: 8443
    protocol: TCP
`)
	if err != nil {
		return "", err
	}
	more, err := syncerObjects()
	if err != nil {
		return "", err
	}
	files["templates/syncer.yaml"] = more

	root := filepath.Join(dir, "vcluster")
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // a chart is no secret
			return "", err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // a chart is no secret
			return "", err
		}
	}
	return root, nil
}

// syncerObjects are those of the vendor's that ours has no use for.
func syncerObjects() (string, error) {
	var out strings.Builder
	for _, object := range VClusterObjects() {
		rendered := map[string]any{"metadata": map[string]any{"name": object.Name, "labels": object.Labels}, "kind": object.Kind}
		switch {
		case object.Kind == "ServiceAccount" && strings.HasPrefix(object.Name, "vc-workload-"):
			rendered["apiVersion"] = "v1"
		case object.Kind == "Secret":
			rendered["apiVersion"], rendered["stringData"] = "v1", map[string]any{"config.yaml": ""}
		case object.Kind == "Role":
			rendered["apiVersion"], rendered["rules"] = "rbac.authorization.k8s.io/v1", object.Rules
		case object.Kind == "RoleBinding":
			rendered["apiVersion"] = "rbac.authorization.k8s.io/v1"
			rendered["roleRef"] = map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": object.Name}
			rendered["subjects"] = []any{map[string]any{"kind": "ServiceAccount", "name": object.Name, "namespace": "vc-acme"}}
		default:
			continue
		}
		text, err := yaml.Marshal(rendered)
		if err != nil {
			return "", err
		}
		out.WriteString("---\n" + strings.NewReplacer("vc-acme", "vc-{{ .Release.Name }}", "acme", "{{ .Release.Name }}").Replace(strings.ReplaceAll(string(text), "namespace: vc-acme", "namespace: {{ .Release.Namespace }}")))
	}
	return out.String(), nil
}
