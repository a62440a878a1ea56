package charttest

import (
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/release"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kubebyon/kubebyon/services/cluster/chart"
)

// Install installs the chart into an existing namespace of the cluster at cfg, without waiting for anything.
func Install(tb testing.TB, cfg *rest.Config, namespace string, values map[string]any) (*release.Release, error) {
	tb.Helper()
	loaded, err := chart.Load()
	if err != nil {
		tb.Fatal(err)
	}
	install := action.NewInstall(configuration(tb, cfg, namespace))
	install.ReleaseName, install.Namespace, install.DisableOpenAPIValidation = Release, namespace, true
	return install.Run(loaded, values)
}

// Upgrade upgrades what Install made.
func Upgrade(tb testing.TB, cfg *rest.Config, namespace string, values map[string]any) (*release.Release, error) {
	tb.Helper()
	loaded, err := chart.Load()
	if err != nil {
		tb.Fatal(err)
	}
	upgrade := action.NewUpgrade(configuration(tb, cfg, namespace))
	upgrade.Namespace, upgrade.DisableOpenAPIValidation = namespace, true
	return upgrade.Run(Release, loaded, values)
}

func configuration(tb testing.TB, cfg *rest.Config, namespace string) *action.Configuration {
	tb.Helper()
	config := &action.Configuration{}
	if err := config.Init(&getter{config: cfg, namespace: namespace}, namespace, "secret", func(string, ...any) {}); err != nil {
		tb.Fatal(err)
	}
	return config
}

// getter is Helm's way to a cluster, from a configuration in memory.
type getter struct {
	config    *rest.Config
	namespace string
	cached    discovery.CachedDiscoveryInterface
}

func (g *getter) ToRESTConfig() (*rest.Config, error) {
	cfg := rest.CopyConfig(g.config)
	cfg.QPS, cfg.Burst = 100, 200
	return cfg, nil
}

func (g *getter) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	if g.cached == nil {
		client, err := discovery.NewDiscoveryClientForConfig(g.config)
		if err != nil {
			return nil, err
		}
		g.cached = memory.NewMemCacheClient(client)
	}
	return g.cached, nil
}

func (g *getter) ToRESTMapper() (meta.RESTMapper, error) {
	client, err := g.ToDiscoveryClient()
	if err != nil {
		return nil, err
	}
	return restmapper.NewDeferredDiscoveryRESTMapper(client), nil
}

func (g *getter) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	return clientcmd.NewDefaultClientConfig(*clientcmdapi.NewConfig(), &clientcmd.ConfigOverrides{Context: clientcmdapi.Context{Namespace: g.namespace}})
}
