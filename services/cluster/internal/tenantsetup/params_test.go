package tenantsetup

import (
	"flag"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

var update = flag.Bool("update", false, "write the golden anew")

func good(t *testing.T) Params {
	t.Helper()
	ca, err := os.ReadFile("testdata/ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	return Params{
		Endpoint:          "tenant.example.org:31234",
		APIServers:        []netip.AddrPort{netip.MustParseAddrPort("198.18.0.2:31234"), netip.MustParseAddrPort("198.18.0.3:31234")},
		CA:                ca,
		PodCIDR:           netip.MustParsePrefix("10.64.1.2/16"),
		ServiceCIDR:       netip.MustParsePrefix("10.128.0.0/16"),
		KubernetesVersion: "v1.37.2",
	}
}

func TestGolden(t *testing.T) {
	batches, err := render(good(t))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, batch := range batches {
		for _, object := range batch {
			text, err := yaml.Marshal(object.Object)
			if err != nil {
				t.Fatal(err)
			}
			got.WriteString("---\n" + string(text))
			if _, ok := resources[object.GroupVersionKind()]; !ok {
				t.Errorf("%s: no resource is known for it", object.GroupVersionKind())
			}
		}
	}
	const golden = "testdata/objects.golden.yaml"
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil { //nolint:gosec // test data
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("-want +got; -update writes it anew:\n%s", diff)
	}
}

func TestParamsAreRefused(t *testing.T) {
	for _, c := range []struct {
		field string
		spoil func(*Params)
	}{
		{"endpoint", func(p *Params) { p.Endpoint = "" }},
		{"endpoint", func(p *Params) { p.Endpoint = "198.18.0.2" }},
		{"endpoint", func(p *Params) { p.Endpoint = "198.18.0.2:0" }},
		{"endpoint", func(p *Params) { p.Endpoint = "198.18.0.2:65536" }},
		{"endpoint", func(p *Params) { p.Endpoint = "198.18.0.2:+1" }},
		{"endpoint", func(p *Params) { p.Endpoint = "https://198.18.0.2:31234" }},
		{"endpoint", func(p *Params) { p.Endpoint = "[fd00::1]:31234" }},
		{"endpoint", func(p *Params) { p.Endpoint = "a b:31234" }},
		{"endpoint", func(p *Params) { p.Endpoint = "a\n    insecure-skip-tls-verify:31234" }},
		{"endpoint", func(p *Params) { p.Endpoint = "{{.CA}}:31234" }},
		{"api_servers", func(p *Params) { p.APIServers = nil }},
		{"api_servers", func(p *Params) { p.APIServers = []netip.AddrPort{{}} }},
		{"api_servers", func(p *Params) { p.APIServers[0] = netip.MustParseAddrPort("127.0.0.1:31234") }},
		{"api_servers", func(p *Params) { p.APIServers[0] = netip.MustParseAddrPort("169.254.169.254:31234") }},
		{"api_servers", func(p *Params) { p.APIServers[0] = netip.MustParseAddrPort("[fd00::1]:31234") }},
		{"api_servers", func(p *Params) { p.APIServers[1] = netip.MustParseAddrPort("198.18.0.3:31235") }},
		{"ca", func(p *Params) { p.CA = nil }},
		{"ca", func(p *Params) { p.CA = []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n") }},
		{"ca", func(p *Params) { p.CA = append(p.CA, p.CA...) }},
		{"pod_cidr", func(p *Params) { p.PodCIDR = netip.Prefix{} }},
		{"pod_cidr", func(p *Params) { p.PodCIDR = netip.MustParsePrefix("10.64.0.0/24") }},
		{"pod_cidr", func(p *Params) { p.PodCIDR = netip.MustParsePrefix("fd00::/16") }},
		{"service_cidr", func(p *Params) { p.ServiceCIDR = netip.Prefix{} }},
		{"service_cidr", func(p *Params) { p.ServiceCIDR = netip.MustParsePrefix("10.0.0.0/8") }},
		{"service_cidr", func(p *Params) { p.ServiceCIDR = netip.MustParsePrefix("10.64.8.0/24") }},
		{"dns_ip", func(p *Params) { p.DNSIP = netip.MustParseAddr("10.64.0.10") }},
		{"kubernetes_version", func(p *Params) { p.KubernetesVersion = "" }},
		{"kubernetes_version", func(p *Params) { p.KubernetesVersion = "1.37.2" }},
		{"kubernetes_version", func(p *Params) { p.KubernetesVersion = "v1.37.2\n" }},
		{"images", func(p *Params) { p.Images.CoreDNS = "a b" }},
		{"images", func(p *Params) { p.Images.Flannel = "Registry/x" }},
		{"images", func(p *Params) { p.Images.KubeProxy = "x:\"" }},
	} {
		params := good(t)
		c.spoil(&params)
		_, err := render(params)
		if !fault.Is(err, fault.Invalid) || fault.From(err).Field != c.field {
			t.Errorf("%s: %+v: %v", c.field, params, err)
		}
	}
	if _, err := render(good(t)); err != nil {
		t.Error(err)
	}
}

// Whatever text is accepted, it stays a value: the objects are the same ones.
func FuzzRender(f *testing.F) {
	f.Add("tenant.example.org:443", "v1.37.2", "registry.example.org:5000/coredns/coredns:v1.15.0@sha256:"+strings.Repeat("a", 64))
	f.Add("198.18.0.2:31234", "v1.37.2-rc.1", "x")
	f.Add("a\n---\nkind: Secret:1", "v1.37.2\n", "x: {y: z}")
	ca, err := os.ReadFile("testdata/ca.crt")
	if err != nil {
		f.Fatal(err)
	}
	names := func(batches [][]*unstructured.Unstructured) (out []string) {
		for _, batch := range batches {
			for _, object := range batch {
				out = append(out, object.GetKind()+"/"+object.GetNamespace()+"/"+object.GetName())
			}
		}
		return out
	}
	params := Params{
		Endpoint: "198.18.0.2:31234", APIServers: []netip.AddrPort{netip.MustParseAddrPort("198.18.0.2:31234")}, CA: ca,
		PodCIDR: netip.MustParsePrefix("10.64.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.128.0.0/16"), KubernetesVersion: "v1.37.2",
	}
	plain, err := render(params)
	if err != nil {
		f.Fatal(err)
	}
	want := names(plain)
	f.Fuzz(func(t *testing.T, endpoint, version, image string) {
		params := params
		params.Endpoint, params.KubernetesVersion, params.Images = endpoint, version, Images{CoreDNS: image, Flannel: image, FlannelPlugin: image, KubeProxy: image}
		got, err := render(params)
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("accepted, and then not rendered: %v", err)
			}
			return
		}
		if diff := cmp.Diff(want, names(got)); diff != "" {
			t.Fatal(diff)
		}
		for _, batch := range got {
			for _, object := range batch {
				if object.GetKind() == "DaemonSet" || object.GetKind() == "Deployment" {
					containers, _, _ := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
					if first := containers[0].(map[string]any)["image"]; image != "" && first != image {
						t.Fatalf("%s: image %v", object.GetName(), first)
					}
				}
			}
		}
	})
}
