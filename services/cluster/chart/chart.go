// Package chart is the Helm chart "kubebyon-upstream", a tenant's control plane of unmodified upstream images, and the
// values that KubeBYON sets in it. It must never talk to a cluster: installing is its caller's work.
package chart

import (
	"embed"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"

	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
)

// all: because Helm's helper files begin with an underscore.
//
//go:embed all:upstream
var upstream embed.FS

// Files is the chart's folder.
func Files() (fs.FS, error) { return fs.Sub(upstream, "upstream") }

// Load parses the embedded chart. Each call gives its own copy, which the caller may hand to one Helm action.
func Load() (*helmchart.Chart, error) {
	files, err := Files()
	if err != nil {
		return nil, fmt.Errorf("embedded chart: %w", err)
	}
	return LoadFS(files)
}

// LoadFS parses a chart whose Chart.yaml is at the root of files.
func LoadFS(files fs.FS) (*helmchart.Chart, error) {
	var buffered []*loader.BufferedFile
	err := fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		buffered = append(buffered, &loader.BufferedFile{Name: path, Data: data})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read chart: %w", err)
	}
	loaded, err := loader.LoadFiles(buffered)
	if err != nil {
		return nil, fmt.Errorf("load chart: %w", err)
	}
	return loaded, nil
}

// The names that a release of either control plane gives to what KubeBYON reads on the host.
const (
	HTTPSPort   = "https"           // the Service's port of the tenant's API
	TokenKey    = "bootstrap-token" // in the Secret <release>-pki: the bearer token of group system:masters
	CACertKey   = "ca.crt"          // in the Secret <release>-pki
	ServerNames = "kubebyon.io/server-names"
)

// ServiceName is the Service in front of the tenant's API.
func ServiceName(release string) string { return release }

// KubeconfigSecretName is the Secret with the exported kubeconfig.
func KubeconfigSecretName(release string) string { return "vc-" + release }

// PKISecretName is the Secret that holds the tenant's CA and the setup token; it never leaves the cluster service.
func PKISecretName(release string) string { return release + "-pki" }

// DataClaimName is the PersistentVolumeClaim of the tenant's etcd; it outlives the release.
func DataClaimName(release string) string { return "data-" + release + "-0" }

// Values are the settings that KubeBYON decides for a cluster. The zero value of a field leaves the chart's default, or
// what the operator's values file says, in place. The names are valid in the vendor's chart too.
type Values struct {
	KubernetesVersion string       // v1.37.2
	ServerNames       []string     // further host names and addresses of the API server's certificate
	PodCIDR           netip.Prefix //
	ServiceCIDR       netip.Prefix //
	ExportedServer    string       // https://host:port in the exported kubeconfig
}

// Map is v as Helm values. Merge it over the operator's file; ServerNames there are replaced, not joined: use
// WithServerNamesOf first.
func (v Values) Map() map[string]any {
	out := map[string]any{}
	set := func(value any, path ...string) {
		at := out
		for _, key := range path[:len(path)-1] {
			next, ok := at[key].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[key] = next
			}
			at = next
		}
		at[path[len(path)-1]] = value
	}
	if v.KubernetesVersion != "" {
		set(v.KubernetesVersion, "controlPlane", "distro", "k8s", "image", "tag")
	}
	if len(v.ServerNames) > 0 {
		names := make([]any, len(v.ServerNames))
		for i, name := range v.ServerNames {
			names[i] = name
		}
		set(names, "controlPlane", "proxy", "extraSANs")
	}
	if v.PodCIDR.IsValid() {
		set(v.PodCIDR.Masked().String(), "networking", "podCIDR")
	}
	if v.ServiceCIDR.IsValid() {
		set(v.ServiceCIDR.Masked().String(), "networking", "serviceCIDR")
	}
	if v.ExportedServer != "" {
		set(v.ExportedServer, "exportKubeConfig", "server")
	}
	return out
}

// WithServerNamesOf adds the names that an operator's values already list, so that Map loses none of them.
func (v Values) WithServerNamesOf(operator map[string]any) Values {
	controlPlane, _ := operator["controlPlane"].(map[string]any)
	proxy, _ := controlPlane["proxy"].(map[string]any)
	listed, _ := proxy["extraSANs"].([]any)
	seen := map[string]bool{}
	names := []string{}
	add := func(name string) {
		if name = strings.TrimSpace(name); name != "" && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	for _, name := range listed {
		if text, ok := name.(string); ok {
			add(text)
		}
	}
	for _, name := range v.ServerNames {
		add(name)
	}
	v.ServerNames = names
	return v
}
