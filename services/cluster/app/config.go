package app

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/config"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/pkg/tenant"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
	"github.com/kubebyon/kubebyon/services/cluster/internal/helm"
)

// Config is what the environment says. LoadConfig fills it, and what it has read from files.
type Config struct {
	config.Common
	rpc.NATS
	DatabaseDSN    config.DSN `env:"KUBEBYON_DATABASE_DSN,required"`
	KubeconfigPath string     `env:"KUBEBYON_KUBECONFIG_PATH" accepts:"the path of the host cluster's kubeconfig; empty inside of that cluster"`

	ControlPlane      clusterv1.ControlPlane `env:"KUBEBYON_CONTROL_PLANE" envDefault:"vcluster" enum:"vcluster|upstream"`
	VClusterChart     string                 `env:"KUBEBYON_VCLUSTER_CHART"`
	VClusterVersion   string                 `env:"KUBEBYON_VCLUSTER_CHART_VERSION" envDefault:"0.33.0"`
	VClusterValues    string                 `env:"KUBEBYON_VCLUSTER_VALUES_FILE" accepts:"the path of a YAML file"`
	UpstreamValues    string                 `env:"KUBEBYON_UPSTREAM_VALUES_FILE" accepts:"the path of a YAML file"`
	KubernetesVersion string                 `env:"KUBEBYON_KUBERNETES_VERSION"`

	PlatformSecret    string        `env:"KUBEBYON_PLATFORM_API_KEY_SECRET_NAME" envDefault:"vcluster-platform-api-key"`
	PlatformNamespace string        `env:"KUBEBYON_PLATFORM_API_KEY_SOURCE_NAMESPACE" envDefault:"kubebyon-system"`
	NodeAddressType   string        `env:"KUBEBYON_HAPROXY_NODE_ADDRESS_TYPE" envDefault:"internal" enum:"internal|external"`
	AllowLoopback     bool          `env:"KUBEBYON_ALLOW_LOOPBACK_HOSTS"`
	ProvisionTimeout  time.Duration `env:"KUBEBYON_PROVISION_TIMEOUT" envDefault:"10m" accepts:"a duration from 10s to 2h, such as 10m"`
	DeleteTimeout     time.Duration `env:"KUBEBYON_DELETE_TIMEOUT" envDefault:"5m" accepts:"a duration from 10s to 2h, such as 5m"`
	ConsoleDomain     string        `env:"KUBEBYON_CONSOLE_DOMAIN"`
	BaseDomain        string        `env:"KUBEBYON_BASE_DOMAIN"`
	ReservedDomains   []string      `env:"KUBEBYON_RESERVED_DOMAINS"`
	Workers           int           `env:"KUBEBYON_CLUSTER_WORKERS" envDefault:"8" accepts:"a whole number from 1 to 64"`

	host                           *rest.Config
	source                         *helm.Source
	vclusterValues, upstreamValues map[string]any
	domains                        cluster.Domains
}

var (
	kubernetesVersion = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$`)
	kubernetesName    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
)

// LoadConfig reads the environment through lookup, and the files that it names. Its error is one line that names the
// variable and says what it accepts.
func LoadConfig(lookup func(string) (string, bool)) (Config, error) {
	cfg, err := config.Load[Config](lookup)
	if err != nil {
		return cfg, err
	}
	wrong := func(variable string, err error, accepts string) (Config, error) {
		return cfg, fmt.Errorf("%s: %w; it accepts %s", variable, err, accepts)
	}
	if cfg.host, err = tenant.HostConfig(cfg.KubeconfigPath); err != nil {
		return cfg, err
	}
	const file = "the path of a YAML file with the chart's values"
	if cfg.source, err = helm.ParseSource(cfg.VClusterChart, cfg.VClusterVersion); err != nil {
		if _, versionErr := helm.ParseSource("", cfg.VClusterVersion); versionErr != nil {
			return wrong("KUBEBYON_VCLUSTER_CHART_VERSION", versionErr, "a version such as 0.33.0")
		}
		return wrong("KUBEBYON_VCLUSTER_CHART", err, helm.SourceAccepts)
	}
	if cfg.vclusterValues, err = helm.ReadValues(cfg.VClusterValues); err == nil {
		err = helm.CheckVCluster(cfg.vclusterValues)
	}
	if err != nil {
		return wrong("KUBEBYON_VCLUSTER_VALUES_FILE", err, file)
	}
	if cfg.upstreamValues, err = helm.ReadValues(cfg.UpstreamValues); err != nil {
		return wrong("KUBEBYON_UPSTREAM_VALUES_FILE", err, file)
	}
	if v := cfg.KubernetesVersion; v != "" && !kubernetesVersion.MatchString(v) {
		return wrong("KUBEBYON_KUBERNETES_VERSION", fmt.Errorf("%.40q is no version", v), "a version such as v1.37.2")
	}
	for variable, value := range map[string]string{"KUBEBYON_PLATFORM_API_KEY_SECRET_NAME": cfg.PlatformSecret, "KUBEBYON_PLATFORM_API_KEY_SOURCE_NAMESPACE": cfg.PlatformNamespace} {
		if !kubernetesName.MatchString(value) {
			return wrong(variable, errors.New("it is no Kubernetes name"), "a name of a-z, 0-9 and -")
		}
	}
	for variable, value := range map[string]time.Duration{"KUBEBYON_PROVISION_TIMEOUT": cfg.ProvisionTimeout, "KUBEBYON_DELETE_TIMEOUT": cfg.DeleteTimeout} {
		if value < 10*time.Second || value > 2*time.Hour {
			return wrong(variable, fmt.Errorf("%s is out of range", value), "a duration from 10s to 2h, such as 10m")
		}
	}
	if variable, err := cfg.readDomains(); err != nil {
		accepts := "a domain such as k8s.example.com"
		if variable == "KUBEBYON_RESERVED_DOMAINS" {
			accepts = "domains with commas between them, such as example.com,example.org"
		}
		return wrong(variable, err, accepts)
	}
	if cfg.Workers < 1 || cfg.Workers > 64 {
		return wrong("KUBEBYON_CLUSTER_WORKERS", fmt.Errorf("%d is out of range", cfg.Workers), "a whole number from 1 to 64")
	}
	return cfg, nil
}

// readDomains checks the domains; where one is wrong it names its variable.
func (c *Config) readDomains() (variable string, err error) {
	for _, one := range []struct {
		variable, value string
		to              *string
	}{{"KUBEBYON_CONSOLE_DOMAIN", c.ConsoleDomain, &c.domains.Console}, {"KUBEBYON_BASE_DOMAIN", c.BaseDomain, &c.domains.Base}} {
		if one.value == "" {
			continue
		}
		if *one.to, err = cluster.ParseDomain(one.value); err != nil {
			return one.variable, fmt.Errorf("%.80q is no domain: %w", one.value, err)
		}
	}
	for _, value := range c.ReservedDomains {
		domain, err := cluster.ParseDomain(value)
		if err != nil {
			return "KUBEBYON_RESERVED_DOMAINS", fmt.Errorf("%.80q is no domain: %w", value, err)
		}
		c.domains.Reserved = append(c.domains.Reserved, domain)
	}
	if err := c.domains.Check(); err != nil {
		return "KUBEBYON_BASE_DOMAIN", fmt.Errorf("%.80q: %w", c.BaseDomain, err)
	}
	return "", nil
}

func (c Config) nodeAddress() corev1.NodeAddressType {
	if c.NodeAddressType == "external" {
		return corev1.NodeExternalIP
	}
	return corev1.NodeInternalIP
}
