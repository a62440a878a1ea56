package tenantsetup

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"text/template"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Params is what differs between tenants. Everything in it is checked before it reaches a template.
type Params struct {
	Endpoint          string           // host:port at which workers reach the tenant's API; the host is in its certificate
	APIServers        []netip.AddrPort // where default/kubernetes leads the tenant's Pods: the host's IPv4 node addresses, all with one port
	CA                []byte           // PEM, the tenant's cluster CA: key ca.crt of the Secret <release>-pki
	PodCIDR           netip.Prefix     // the chart's networking.podCIDR
	ServiceCIDR       netip.Prefix     // the chart's networking.serviceCIDR
	DNSIP             netip.Addr       // zero: DefaultDNSIP(ServiceCIDR)
	KubernetesVersion string           // v1.37.2, of kube-proxy
	Images            Images           // zero fields: the defaults
}

// Images are the addons' image references.
type Images struct {
	KubeProxy     string // default registry.k8s.io/kube-proxy:<KubernetesVersion>
	CoreDNS       string
	Flannel       string
	FlannelPlugin string
}

// The images of a tenant's addons, unless Params.Images says otherwise.
const (
	DefaultCoreDNS       = "registry.k8s.io/coredns/coredns:v1.15.0"
	DefaultFlannel       = "ghcr.io/flannel-io/flannel:v0.28.10"
	DefaultFlannelPlugin = "ghcr.io/flannel-io/flannel-cni-plugin:v1.9.1-flannel1"
)

// DefaultDNSIP is the tenth address of the Service network, where kubelets expect the cluster's DNS.
func DefaultDNSIP(services netip.Prefix) netip.Addr {
	ip := services.Masked().Addr()
	for range 10 {
		ip = ip.Next()
	}
	return ip
}

var (
	versionPattern = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$`)
	imagePattern   = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*(:[0-9]+)?(/[a-z0-9._-]+)*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[a-f0-9]{64})?$`)
)

// complete fills in the defaults and checks the rest; the fault names the field.
func (p Params) complete() (Params, error) {
	wrong := func(field, format string, args ...any) (Params, error) {
		return Params{}, fault.New(fault.Invalid, "tenant_setup_invalid", format, args...).In(field)
	}
	host, port, err := net.SplitHostPort(p.Endpoint)
	if number, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil || number == 0 {
		return wrong("endpoint", "the endpoint must be host:port")
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if !ip.Is4() {
			return wrong("endpoint", "the endpoint's address must be IPv4")
		}
	} else if problems := validation.IsDNS1123Subdomain(host); len(problems) > 0 {
		return wrong("endpoint", "the endpoint's host must be an IPv4 address or a DNS name")
	}
	if len(p.APIServers) == 0 {
		return wrong("api_servers", "at least one address of the tenant's API is needed")
	}
	for _, at := range p.APIServers {
		// The API refuses these in an EndpointSlice, and a Pod could not use them.
		if ip := at.Addr(); !ip.Is4() || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() {
			return wrong("api_servers", "%s is not an IPv4 address that the workers can reach", ip)
		}
		if at.Port() == 0 || at.Port() != p.APIServers[0].Port() {
			return wrong("api_servers", "the addresses of the tenant's API must share one port")
		}
	}
	if err := checkCA(p.CA); err != nil {
		return wrong("ca", "the tenant's CA is not one PEM certificate")
	}
	p.PodCIDR, p.ServiceCIDR = p.PodCIDR.Masked(), p.ServiceCIDR.Masked()
	switch {
	case !p.PodCIDR.IsValid() || !p.PodCIDR.Addr().Is4() || p.PodCIDR.Bits() > 23:
		return wrong("pod_cidr", "the Pod network must be IPv4 and at least a /23: each worker takes a /24 of it")
	case !p.ServiceCIDR.IsValid() || !p.ServiceCIDR.Addr().Is4() || p.ServiceCIDR.Bits() < 12 || p.ServiceCIDR.Bits() > 28:
		return wrong("service_cidr", "the Service network must be IPv4, between a /12 and a /28")
	case p.PodCIDR.Overlaps(p.ServiceCIDR):
		return wrong("service_cidr", "the Service network overlaps the Pod network")
	}
	if !p.DNSIP.IsValid() {
		p.DNSIP = DefaultDNSIP(p.ServiceCIDR)
	}
	if !p.ServiceCIDR.Contains(p.DNSIP) {
		return wrong("dns_ip", "the DNS address is outside the Service network")
	}
	if !versionPattern.MatchString(p.KubernetesVersion) {
		return wrong("kubernetes_version", "the Kubernetes version must look like v1.37.2")
	}
	for _, image := range []struct {
		reference *string
		otherwise string
	}{
		{&p.Images.KubeProxy, "registry.k8s.io/kube-proxy:" + p.KubernetesVersion},
		{&p.Images.CoreDNS, DefaultCoreDNS},
		{&p.Images.Flannel, DefaultFlannel},
		{&p.Images.FlannelPlugin, DefaultFlannelPlugin},
	} {
		if *image.reference == "" {
			*image.reference = image.otherwise
		}
		if !imagePattern.MatchString(*image.reference) {
			return wrong("images", "%q is not an image reference", *image.reference)
		}
	}
	return p, nil
}

func checkCA(text []byte) error {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return errors.New("not one PEM certificate")
	}
	_, err := x509.ParseCertificate(block.Bytes)
	return err
}

//go:embed objects/*.yaml
var objectFiles embed.FS

// batches are the files in the order of their application; what is in one batch is applied together. A join needs
// the first batch only.
var batches = [][]string{
	{"10-access.yaml", "20-api-address.yaml"},
	{"30-kube-proxy.yaml", "40-flannel.yaml", "50-coredns.yaml"},
}

// resources saves the tenant a discovery: the kinds in the files are few and known.
var resources = map[schema.GroupVersionKind]schema.GroupVersionResource{
	{Version: "v1", Kind: "Namespace"}:                                              {Version: "v1", Resource: "namespaces"},
	{Version: "v1", Kind: "ServiceAccount"}:                                         {Version: "v1", Resource: "serviceaccounts"},
	{Version: "v1", Kind: "ConfigMap"}:                                              {Version: "v1", Resource: "configmaps"},
	{Version: "v1", Kind: "Service"}:                                                {Version: "v1", Resource: "services"},
	{Version: "v1", Kind: "Endpoints"}:                                              {Version: "v1", Resource: "endpoints"},
	{Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice"}:               {Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	{Group: "apps", Version: "v1", Kind: "Deployment"}:                              {Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "apps", Version: "v1", Kind: "DaemonSet"}:                               {Group: "apps", Version: "v1", Resource: "daemonsets"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "Role"}:               {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"}:        {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"}:        {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRoleBinding"}: {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
}

// render gives the objects of each batch.
func render(params Params) ([][]*unstructured.Unstructured, error) {
	params, err := params.complete()
	if err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(params.Endpoint)
	addresses := make([]netip.Addr, len(params.APIServers))
	for i, at := range params.APIServers {
		addresses[i] = at.Addr()
	}
	settings, err := json.Marshal(params)
	if err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	sum := sha256.Sum256(settings)
	data := struct {
		Params
		EndpointHost, EndpointPort string
		APIAddresses               []netip.Addr
		APIPort                    uint16
		Checksum                   string // changes when a node's Pods must restart to see new settings
	}{params, host, port, addresses, params.APIServers[0].Port(), hex.EncodeToString(sum[:8])}

	templates, err := template.New("").Option("missingkey=error").Funcs(template.FuncMap{
		"quote":  func(text string) (string, error) { out, err := json.Marshal(text); return string(out), err },
		"base64": base64.StdEncoding.EncodeToString,
	}).ParseFS(objectFiles, "objects/*.yaml")
	if err != nil {
		return nil, fmt.Errorf("embedded objects: %w", err)
	}
	var out [][]*unstructured.Unstructured
	for _, files := range batches {
		var batch []*unstructured.Unstructured
		for _, file := range files {
			var text strings.Builder
			if err := templates.ExecuteTemplate(&text, file, data); err != nil {
				return nil, fmt.Errorf("embedded objects: %w", err)
			}
			objects, err := decode(text.String())
			if err != nil {
				return nil, fmt.Errorf("embedded objects: %s: %w", file, err)
			}
			batch = append(batch, objects...)
		}
		out = append(out, batch)
	}
	return out, nil
}

func decode(text string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		switch err := decoder.Decode(&object.Object); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, err
		case len(object.Object) == 0:
			continue
		}
		labels := object.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[partOfLabel] = partOf
		object.SetLabels(labels)
		objects = append(objects, object)
	}
}

// Objects is what Apply writes, as YAML documents in the order in which it writes them.
func Objects(params Params) ([]byte, error) {
	batches, err := render(params)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, batch := range batches {
		for _, object := range batch {
			text, err := sigsyaml.Marshal(object.Object)
			if err != nil {
				return nil, fmt.Errorf("embedded objects: %w", err)
			}
			out.WriteString("---\n")
			out.Write(text)
		}
	}
	return out.Bytes(), nil
}
