package helm

import (
	"fmt"
	"maps"
	"os"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/kubebyon/kubebyon/services/cluster/chart"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
)

// maxValuesFile bounds what is read of an operator's file.
const maxValuesFile = 1 << 20

// ReadValues reads an operator's values file; an empty path gives none. The error is one line and never repeats the
// file's text.
func ReadValues(path string) (map[string]any, error) {
	if path == "" {
		return map[string]any{}, nil
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the file %q cannot be read (%w)", path, unwrapPath(err))
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%q is no regular file", path)
	case info.Size() > maxValuesFile:
		return nil, fmt.Errorf("the file %q is larger than 1 MiB", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the file %q cannot be read (%w)", path, unwrapPath(err))
	}
	var values map[string]any
	if err := yaml.UnmarshalStrict(text, &values); err != nil {
		return nil, fmt.Errorf("the file %q is not a YAML mapping (%s)", path, yamlPlace(err))
	}
	if values == nil {
		values = map[string]any{}
	}
	return values, nil
}

func unwrapPath(err error) error {
	if pathError, ok := err.(*os.PathError); ok { //nolint:errorlint // os gives it unwrapped
		return pathError.Err
	}
	return err
}

// yamlPlace keeps the line number of a parser's error and drops the text around it.
func yamlPlace(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	if _, after, found := strings.Cut(text, "line "); found {
		if number, _, found := strings.Cut(after, ":"); found && len(number) < 8 {
			return "line " + number
		}
	}
	return "it holds something else"
}

// CheckVCluster refuses values with which no node could ever join.
func CheckVCluster(values map[string]any) error {
	if enabled, set := dig(values, "privateNodes", "enabled"); set && enabled != true {
		return fmt.Errorf("privateNodes.enabled is %v: without private nodes no node can join", enabled)
	}
	if kind, set := dig(values, "controlPlane", "service", "spec", "type"); set && kind != "NodePort" {
		return fmt.Errorf("controlPlane.service.spec.type is %v: KubeBYON reaches control planes by NodePort", kind)
	}
	return nil
}

// vclusterValues are the operator's, with what KubeBYON decides over them.
func vclusterValues(operator map[string]any, c cluster.Cluster) map[string]any {
	ours := chart.Values{ServerNames: c.ServerNames()}.WithServerNamesOf(operator).Map()
	return merge(operator, ours, map[string]any{
		"privateNodes": map[string]any{"enabled": true},
		"controlPlane": map[string]any{"service": map[string]any{"spec": map[string]any{"type": "NodePort"}}},
	})
}

func upstreamValues(operator map[string]any, version string, c cluster.Cluster) map[string]any {
	ours := chart.Values{KubernetesVersion: version, ServerNames: c.ServerNames()}.WithServerNamesOf(operator).Map()
	return merge(operator, ours)
}

// merge lays each map over the ones before it, key by key; lists are replaced. Nothing is shared with the arguments.
func merge(layers ...map[string]any) map[string]any {
	out := map[string]any{}
	for _, layer := range layers {
		for key, value := range layer {
			over, isMap := value.(map[string]any)
			if !isMap {
				out[key] = value
				continue
			}
			under, _ := out[key].(map[string]any)
			out[key] = merge(maps.Clone(under), over)
		}
	}
	return out
}

func dig(values map[string]any, path ...string) (any, bool) {
	for i, key := range path {
		value, set := values[key]
		if !set {
			return nil, false
		}
		if i == len(path)-1 {
			return value, true
		}
		next, ok := value.(map[string]any)
		if !ok {
			return nil, false
		}
		values = next
	}
	return nil, false
}

func digText(values map[string]any, path ...string) string {
	value, _ := dig(values, path...)
	text, _ := value.(string)
	return text
}
