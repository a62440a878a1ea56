package chart_test

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chartutil"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/kubebyon/kubebyon/services/cluster/chart"
	"github.com/kubebyon/kubebyon/services/cluster/chart/charttest"
)

var update = flag.Bool("update", false, "write the goldens anew")

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	values := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &values); err != nil {
		t.Fatal(err)
	}
	return values
}

func TestGolden(t *testing.T) {
	for name, values := range map[string]string{
		"defaults": "",
		"guide":    string(read(t, "guide-values.yaml")),
		"all": `
controlPlane:
  endpoint: tenant.example.org:443
  advanced: {defaultImageRegistry: mirror.example.org:5000/k8s/}
  distro:
    k8s:
      apiServer: {extraArgs: [--event-ttl=30m]}
      controllerManager: {extraArgs: [--v=2]}
      scheduler: {extraArgs: [--v=3]}
  backingStore: {etcd: {embedded: {extraArgs: [--snapshot-count=5000]}}}
  proxy: {extraSANs: [192.0.2.7, tenant.example.org, 127.0.0.1]}
  service:
    annotations: {a: b}
    labels: {c: d}
    httpsNodePort: 31443
    spec: {type: LoadBalancer, externalTrafficPolicy: Local}
  statefulSet:
    annotations: {e: f}
    labels: {g: h}
    pods: {annotations: {i: j}, labels: {k: l}}
    persistence: {volumeClaim: {size: 2Gi, storageClass: fast, retentionPolicy: Delete}}
    scheduling:
      nodeSelector: {disk: ssd}
      tolerations: [{key: tenants, operator: Exists}]
      priorityClassName: tenants
      affinity: {nodeAffinity: {}}
    security: {podSecurityContext: {runAsNonRoot: false, runAsUser: 0}}
policies: {networkPolicy: {enabled: false}}
networking: {podCIDR: 10.1.0.0/20, serviceCIDR: 172.20.16.0/20}
`,
	} {
		t.Run(name, func(t *testing.T) {
			objects := charttest.Render(t, parse(t, values))
			var got strings.Builder
			for _, key := range slices.Sorted(maps.Keys(objects)) {
				charttest.MaskSecrets(objects[key])
				text, err := yaml.Marshal(objects[key].Object)
				if err != nil {
					t.Fatal(err)
				}
				got.WriteString("---\n" + string(text))
			}
			golden := name + ".golden.yaml"
			if *update {
				if err := os.WriteFile(filepath.Join("testdata", golden), []byte(got.String()), 0o644); err != nil { //nolint:gosec // test data
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(read(t, golden)), got.String()); diff != "" {
				t.Errorf("rendered otherwise than %s (-want +got); -update writes it anew:\n%s", golden, diff)
			}
		})
	}
}

func TestValuesAreRefused(t *testing.T) {
	for _, c := range []struct{ values, because string }{
		{"controlplane: {}", "additional properties 'controlplane' not allowed"},
		{"controlPlane: {distro: {k3s: {enabled: true}}}", "additional properties 'k3s' not allowed"},
		{"controlPlane: {distro: {k8s: {enabled: false}}}", "/controlPlane/distro/k8s/enabled"},
		{"controlPlane: {distro: {k8s: {image: {tag: latest}}}}", "/controlPlane/distro/k8s/image/tag"},
		{"controlPlane: {distro: {k8s: {image: {tag: 'v1.37.2 --x'}}}}", "/controlPlane/distro/k8s/image/tag"},
		{"controlPlane: {distro: {k8s: {image: {repository: loft-sh/kubernetes}}}}", "additional properties 'repository' not allowed"},
		{"controlPlane: {backingStore: {database: {external: {enabled: true}}}}", "additional properties 'database' not allowed"},
		{"controlPlane: {backingStore: {etcd: {deploy: {enabled: true}}}}", "/controlPlane/backingStore/etcd/deploy/enabled"},
		{"controlPlane: {coredns: {embedded: true}}", "/controlPlane/coredns/embedded"},
		{"controlPlane: {proxy: {extraSANs: tenant.example.org}}", "/controlPlane/proxy/extraSANs"},
		{"controlPlane: {proxy: {extraSANs: ['https://tenant.example.org']}}", "/controlPlane/proxy/extraSANs/0"},
		{"controlPlane: {proxy: {extraSANs: ['a b']}}", "/controlPlane/proxy/extraSANs/0"},
		{"controlPlane: {service: {httpsNodePort: 80}}", "/controlPlane/service/httpsNodePort"},
		{"controlPlane: {service: {httpsNodePort: '31443'}}", "/controlPlane/service/httpsNodePort"},
		{"controlPlane: {service: {spec: {type: ExternalName}}}", "/controlPlane/service/spec/type"},
		{"controlPlane: {service: {spec: {selector: {a: b}}}}", "additional properties 'selector' not allowed"},
		{"controlPlane: {statefulSet: {highAvailability: {replicas: 3}}}", "/controlPlane/statefulSet/highAvailability/replicas"},
		{"controlPlane: {statefulSet: {resources: {claims: {}}}}", "additional properties 'claims' not allowed"},
		{"controlPlane: {statefulSet: {persistence: {volumeClaim: {size: big}}}}", "/controlPlane/statefulSet/persistence/volumeClaim/size"},
		{"controlPlane: {statefulSet: {persistence: {volumeClaim: {enabled: false}}}}", "/controlPlane/statefulSet/persistence/volumeClaim/enabled"},
		{"controlPlane: {endpoint: 'https://tenant.example.org'}", "/controlPlane/endpoint"},
		{"exportKubeConfig: {server: 'http://tenant.example.org'}", "/exportKubeConfig/server"},
		{"exportKubeConfig: {server: 'https://a/?x'}", "/exportKubeConfig/server"},
		{"networking: {podCIDR: 10.64.0.0}", "/networking/podCIDR"},
		{"networking: {podCIDR: 10.64.0.0/24}", "/networking/podCIDR"},
		{"networking: {podCIDR: 'fd00::/48'}", "/networking/podCIDR"},
		{"networking: {serviceCIDR: 10.0.0.0/8}", "/networking/serviceCIDR"},
		{"networking: {serviceCIDR: 10.128.0.300/16}", "/networking/serviceCIDR"},
		{"networking: {dnsIP: 10.128.0.10}", "additional properties 'dnsIP' not allowed"},
		{"privateNodes: {enabled: false}", "/privateNodes/enabled"},
		{"sync: {}", "additional properties 'sync' not allowed"},
	} {
		_, err := charttest.TryRender(parse(t, c.values), nil)
		if err == nil {
			t.Errorf("%s: accepted", c.values)
		} else if !strings.Contains(err.Error(), c.because) {
			t.Errorf("%s: refused, but not because of %q:\n%v", c.values, c.because, err)
		}
	}
}

// One values file serves both charts: what ours accepts, the vendor's must know.
func TestValuesAreTheVendors(t *testing.T) {
	vendor := charttest.VClusterSchema()
	loaded, err := chart.Load()
	if err != nil {
		t.Fatal(err)
	}
	guide := parse(t, string(read(t, "guide-values.yaml")))
	for name, values := range map[string]map[string]any{
		"the chart's defaults": loaded.Values,
		"the guide's file":     guide,
		"what KubeBYON sets":   overlay().Map(),
		"guide and overlay":    chartutil.CoalesceTables(overlay().WithServerNamesOf(guide).Map(), guide),
	} {
		if err := chartutil.ValidateAgainstSingleSchema(values, vendor); err != nil {
			t.Errorf("%s: the vendor's schema refuses it: %v", name, err)
		}
		if err := chartutil.ValidateAgainstSingleSchema(values, loaded.Schema); err != nil {
			t.Errorf("%s: our schema refuses it: %v", name, err)
		}
	}

	var ours, theirs map[string]any
	for _, s := range []struct {
		text []byte
		into *map[string]any
	}{{loaded.Schema, &ours}, {vendor, &theirs}} {
		if err := json.Unmarshal(s.text, s.into); err != nil {
			t.Fatal(err)
		}
	}
	var walk func(path string, our, their map[string]any)
	walk = func(path string, our, their map[string]any) {
		our, their = resolve(ours, our), resolve(theirs, their)
		known, _ := their["properties"].(map[string]any)
		properties, _ := our["properties"].(map[string]any)
		if their["additionalProperties"] == nil && len(known) == 0 {
			return // free-form in the vendor's
		}
		for key, sub := range properties {
			if _, ok := known[key]; !ok {
				t.Errorf("%s.%s is not a key of the vendor's chart", path, key)
				continue
			}
			walk(path+"."+key, sub.(map[string]any), known[key].(map[string]any))
		}
	}
	walk("", ours, theirs)
}

func resolve(root, schema map[string]any) map[string]any {
	for {
		ref, ok := schema["$ref"].(string)
		if !ok {
			return schema
		}
		schema = root["$defs"].(map[string]any)[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
	}
}

func overlay() chart.Values {
	return chart.Values{
		KubernetesVersion: "v1.37.2",
		ServerNames:       []string{"198.18.0.2", "tenant.example.org"},
		PodCIDR:           netip.MustParsePrefix("10.64.3.4/16"),
		ServiceCIDR:       netip.MustParsePrefix("10.128.0.0/16"),
		ExportedServer:    "https://tenant.example.org:443",
	}
}

func TestValuesMap(t *testing.T) {
	operator := parse(t, "controlPlane: {proxy: {extraSANs: [a.example.org, 198.18.0.2]}}")
	got := overlay().WithServerNamesOf(operator).Map()
	want := parse(t, `
controlPlane:
  distro: {k8s: {image: {tag: v1.37.2}}}
  proxy: {extraSANs: [a.example.org, 198.18.0.2, tenant.example.org]}
networking: {podCIDR: 10.64.0.0/16, serviceCIDR: 10.128.0.0/16}
exportKubeConfig: {server: "https://tenant.example.org:443"}
`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := (chart.Values{}).Map(); len(got) != 0 {
		t.Errorf("no settings became %v", got)
	}
}

// token, node and edge read the same names, labels and ports, whichever chart made them.
func TestSurfaceIsTheVendors(t *testing.T) {
	objects := charttest.Render(t, nil)
	for _, theirs := range charttest.VClusterObjects() {
		switch key := theirs.Kind + "/" + theirs.Name; key {
		case "ServiceAccount/vc-workload-acme", "Secret/vc-config-acme", "Role/vc-acme", "RoleBinding/vc-acme":
			continue // the syncer's own
		default:
			ours := objects[key]
			if ours == nil {
				t.Errorf("no %s", key)
				continue
			}
			for _, label := range []string{"app", "release", "heritage"} {
				if got := ours.GetLabels()[label]; got != theirs.Labels[label] {
					t.Errorf("%s: label %s is %q, the vendor's is %q", key, label, got, theirs.Labels[label])
				}
			}
			selector, _, _ := unstructured.NestedFieldNoCopy(ours.Object, "spec", "selector")
			if theirs.Kind != "ServiceAccount" && !cmp.Equal(selector, theirs.Spec.Selector) {
				t.Errorf("%s: selects %v, the vendor's %v", key, selector, theirs.Spec.Selector)
			}
			if theirs.Kind == "Service" {
				want := theirs.Spec.Ports[0]
				ports, _, _ := unstructured.NestedSlice(ours.Object, "spec", "ports")
				got := ports[0].(map[string]any)
				if fmt.Sprint(got["name"], got["port"], got["targetPort"], got["protocol"]) != fmt.Sprint(want.Name, want.Port, want.TargetPort, want.Protocol) {
					t.Errorf("%s: port %v, the vendor's %+v", key, got, want)
				}
			}
			if theirs.Kind == "StatefulSet" {
				claims, _, _ := unstructured.NestedSlice(ours.Object, "spec", "volumeClaimTemplates")
				if name, _, _ := unstructured.NestedString(claims[0].(map[string]any), "metadata", "name"); len(claims) != 1 || name != theirs.Spec.VolumeClaimTemplates[0] {
					t.Errorf("%s: claims %v, the vendor's %v", key, claims, theirs.Spec.VolumeClaimTemplates)
				}
			}
		}
	}
	data, _, _ := unstructured.NestedStringMap(objects["Secret/vc-acme"].Object, "data")
	if got, want := slices.Sorted(maps.Keys(data)), []string{"certificate-authority", "client-certificate", "client-key", "config", "token"}; !slices.Equal(got, want) {
		t.Errorf("Secret vc-acme has the keys %v, the vendor's %v", got, want)
	}
}

func TestCertificates(t *testing.T) {
	objects := charttest.Render(t, parse(t, "controlPlane: {proxy: {extraSANs: [198.18.0.2, tenant.example.org, '2001:db8::1']}}"))
	pki := data(t, objects["Secret/acme-pki"])
	access := data(t, objects["Secret/vc-acme"])

	roots := map[string]*x509.CertPool{}
	for _, ca := range []string{"ca", "front-proxy-ca"} {
		certificate := certificate(t, pki[ca+".crt"])
		if !certificate.IsCA || time.Until(certificate.NotAfter) < 9*365*24*time.Hour {
			t.Errorf("%s.crt: CA %v, ends %s", ca, certificate.IsCA, certificate.NotAfter)
		}
		roots[ca] = x509.NewCertPool()
		roots[ca].AddCert(certificate)
	}
	for file, want := range map[string]struct{ ca, user string }{
		"apiserver":                {"ca", "kube-apiserver"},
		"apiserver-kubelet-client": {"ca", "kube-apiserver-kubelet-client"},
		"controller-manager":       {"ca", "system:kube-controller-manager"},
		"scheduler":                {"ca", "system:kube-scheduler"},
		"admin":                    {"ca", "kubernetes-admin"},
		"front-proxy-client":       {"front-proxy-ca", "front-proxy-client"},
	} {
		got := certificate(t, pki[file+".crt"])
		if got.Subject.String() != "CN="+want.user {
			t.Errorf("%s.crt is for %s", file, got.Subject)
		}
		if _, err := got.Verify(x509.VerifyOptions{Roots: roots[want.ca], KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Errorf("%s.crt: %v", file, err)
		}
		if file != "apiserver" && len(got.DNSNames)+len(got.IPAddresses) > 0 {
			t.Errorf("%s.crt may serve as %v %v", file, got.DNSNames, got.IPAddresses)
		}
		if block, _ := pem.Decode(pki[file+".key"]); block == nil || block.Type != "EC PRIVATE KEY" {
			t.Errorf("%s.key is not an EC key", file)
		}
	}
	server := certificate(t, pki["apiserver.crt"])
	for _, name := range []string{
		"localhost", "127.0.0.1", "10.128.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		"acme", "acme.vc-acme", "acme.vc-acme.svc", "198.18.0.2", "tenant.example.org", "2001:db8::1",
	} {
		if err := server.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	kubeconfig, err := clientcmd.RESTConfigFromKubeConfig(access["config"])
	if err != nil {
		t.Fatal(err)
	}
	if kubeconfig.Host != "https://localhost:8443" || string(kubeconfig.CAData) != string(pki["ca.crt"]) || string(kubeconfig.KeyData) != string(access["client-key"]) {
		t.Error("the exported kubeconfig does not say what its Secret says")
	}
	for file, text := range access {
		if strings.Contains(string(text), string(pki[chart.TokenKey])) {
			t.Errorf("Secret vc-acme/%s holds the setup token", file)
		}
	}
}

func TestServiceAddressOfTheCertificate(t *testing.T) {
	for network, want := range map[string]string{
		"10.128.0.0/16": "10.128.0.1", "10.128.5.7/16": "10.128.0.1", "172.20.16.0/20": "172.20.16.1", "172.20.31.255/20": "172.20.16.1",
		"192.168.255.128/25": "192.168.255.129", "192.168.1.250/28": "192.168.1.241", "240.0.0.0/12": "240.0.0.1",
	} {
		objects := charttest.Render(t, parse(t, "networking: {serviceCIDR: "+network+"}"))
		var names []string
		if err := json.Unmarshal([]byte(objects["Secret/acme-pki"].GetAnnotations()[chart.ServerNames]), &names); err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(names, want) {
			t.Errorf("%s: the certificate is for %v, not for %s", network, names, want)
		}
	}
}

// Nothing of the tenant's is seen by a container that does not need it, and no container may do more than it must.
func TestHardening(t *testing.T) {
	set := charttest.Render(t, nil)["StatefulSet/acme"].Object
	spec, _, _ := unstructured.NestedMap(set, "spec", "template", "spec")
	for field, want := range map[string]any{"automountServiceAccountToken": false, "enableServiceLinks": false, "hostNetwork": nil, "hostPID": nil, "hostIPC": nil, "initContainers": nil} {
		if got := spec[field]; got != want {
			t.Errorf("%s is %v", field, got)
		}
	}
	files := map[string][]string{}
	for _, v := range spec["volumes"].([]any) {
		volume := v.(map[string]any)
		items, _, _ := unstructured.NestedSlice(volume, "secret", "items")
		for _, item := range items {
			files[volume["name"].(string)] = append(files[volume["name"].(string)], item.(map[string]any)["path"].(string))
		}
	}
	sees := map[string][]string{}
	for _, c := range spec["containers"].([]any) {
		container := c.(map[string]any)
		name := container["name"].(string)
		security := container["securityContext"].(map[string]any)
		drop, _, _ := unstructured.NestedStringSlice(security, "capabilities", "drop")
		if security["allowPrivilegeEscalation"] != false || security["readOnlyRootFilesystem"] != true || !slices.Equal(drop, []string{"ALL"}) {
			t.Errorf("%s: %v", name, security)
		}
		for _, m := range container["volumeMounts"].([]any) {
			sees[name] = append(sees[name], files[m.(map[string]any)["name"].(string)]...)
		}
		for _, argument := range container["command"].([]any) {
			if text := argument.(string); name == "etcd" && strings.Contains(text, "-urls=") && !strings.Contains(text, "=http://127.0.0.1:") {
				t.Errorf("etcd listens outside the Pod: %s", text)
			}
		}
	}
	for file, who := range map[string][]string{"ca.key": {"kube-controller-manager"}, "tokens.csv": {"kube-apiserver"}, "admin.key": nil, "front-proxy-ca.key": nil, "bootstrap-token": nil} {
		for name, files := range sees {
			if slices.Contains(files, file) && !slices.Contains(who, name) {
				t.Errorf("%s sees %s", name, file)
			}
		}
	}
}

func TestRenderingIsCheap(t *testing.T) {
	best := time.Hour
	for range 5 { // the machine may be busy with other things
		began := time.Now()
		charttest.Render(t, nil)
		best = min(best, time.Since(began))
	}
	if best > 500*time.Millisecond {
		t.Errorf("rendering took %s; the Pod must exist a second after the request", best)
	}
}

func data(t *testing.T, object *unstructured.Unstructured) map[string][]byte {
	t.Helper()
	encoded, _, _ := unstructured.NestedStringMap(object.Object, "data")
	out := map[string][]byte{}
	for key, value := range encoded {
		text, err := base64.StdEncoding.DecodeString(value)
		if err != nil {
			t.Fatal(err)
		}
		out[key] = text
	}
	return out
}

func certificate(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatal("no PEM")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}
