package kubectl

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// client is kubectl's way to the API, as a RESTClientGetter: no kubeconfig, no environment, no cache on a disk.
type client struct {
	server    string
	namespace string // of the flag; empty: default
	transport http.RoundTripper
	warnings  rest.WarningHandler

	discovery func() (discovery.CachedDiscoveryInterface, error)
	mapper    func() (meta.RESTMapper, error)
}

func newClient(server, socket string, warnings io.Writer) *client {
	c := &client{
		server:    server,
		transport: overSocket(socket),
		warnings:  rest.NewWarningWriter(warnings, rest.WarningWriterOptions{Deduplicate: true}),
	}
	c.discovery = sync.OnceValues(func() (discovery.CachedDiscoveryInterface, error) {
		cfg, err := c.ToRESTConfig()
		if err != nil {
			return nil, err
		}
		found, err := discovery.NewDiscoveryClientForConfig(cfg)
		if err != nil {
			return nil, err
		}
		return memory.NewMemCacheClient(found), nil
	})
	c.mapper = sync.OnceValues(func() (meta.RESTMapper, error) {
		found, err := c.discovery()
		if err != nil {
			return nil, err
		}
		warn := func(text string) { _, _ = io.WriteString(warnings, "Warning: "+text+"\n") }
		return restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(found), found, warn), nil
	})
	return c
}

// ToRESTConfig implements genericclioptions.RESTClientGetter. Each caller may change what it gets.
func (c *client) ToRESTConfig() (*rest.Config, error) {
	return &rest.Config{
		Host: c.server, Transport: c.transport, WarningHandler: c.warnings, UserAgent: "kubectl",
		QPS: -1, // the parent bounds what a run may ask
	}, nil
}

// ToDiscoveryClient implements genericclioptions.RESTClientGetter.
func (c *client) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	return c.discovery()
}

// ToRESTMapper implements genericclioptions.RESTClientGetter.
func (c *client) ToRESTMapper() (meta.RESTMapper, error) { return c.mapper() }

// ToRawKubeConfigLoader implements genericclioptions.RESTClientGetter. What allowed commands ask of it is the namespace.
func (c *client) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	const name = "tenant"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: c.server}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name}
	config.CurrentContext = name
	overrides := &clientcmd.ConfigOverrides{Context: clientcmdapi.Context{Namespace: c.namespace}}
	return loader{clientcmd.NewDefaultClientConfig(*config, overrides), c}
}

type inner = clientcmd.ClientConfig

// loader never gives a configuration that leads past the socket.
type loader struct {
	inner
	client *client
}

func (l loader) ClientConfig() (*rest.Config, error) { return l.client.ToRESTConfig() }

// overSocket sends every request through the socket, whatever its address says.
func overSocket(path string) http.RoundTripper {
	return plain{&http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
		DisableCompression:  true, // it goes from one process to the next
		MaxIdleConnsPerHost: 16,
	}}
}

// plain takes the TLS off, which the other end of the socket puts on.
type plain struct{ next *http.Transport }

func (p plain) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.URL.Scheme = "http"
	return p.next.RoundTrip(req)
}
