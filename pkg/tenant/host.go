package tenant

import (
	"errors"
	"fmt"
	"net/http"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubebyon/kubebyon/pkg/telemetry"
)

// Client-go's own limits are 5 and 10, which a handful of calls exhausts.
const (
	hostQPS     = 100
	hostBurst   = 200
	tenantQPS   = 50
	tenantBurst = 100
	userAgent   = "kubebyon"
)

// HostConfig is how to reach the host cluster: by the operator's kubeconfig at path, which is trusted, or as the Pod that
// we are where path is empty. It has no overall timeout, since that would cut watches; give each call a context.
func HostConfig(path string) (*rest.Config, error) {
	cfg, err := hostConfig(path)
	if err != nil {
		return nil, err
	}
	cfg.QPS, cfg.Burst, cfg.Timeout = hostQPS, hostBurst, 0
	cfg.UserAgent, cfg.WarningHandler = userAgent, rest.NoWarnings{}
	cfg.Wrap(traced)
	return cfg, nil
}

func traced(next http.RoundTripper) http.RoundTripper { return telemetry.Transport("kubernetes", next) }

func hostConfig(path string) (*rest.Config, error) {
	if path == "" {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, errors.New("KUBEBYON_KUBECONFIG_PATH is empty and this is not a Pod: " +
				"it accepts the path of a kubeconfig of the host cluster")
		}
		return cfg, nil
	}
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("KUBEBYON_KUBECONFIG_PATH: %w; it accepts the path of a kubeconfig of the host cluster", err)
	}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: path}, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("KUBEBYON_KUBECONFIG_PATH: %q is no usable kubeconfig (%w); it accepts the path of a kubeconfig of the host cluster", path, err)
	}
	return cfg, nil
}
