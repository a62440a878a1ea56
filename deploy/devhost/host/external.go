package host

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// useExternal writes host.kubeconfig for a cluster that the user has, once it answers. Certificates and keys that the
// user's file only points to are copied into it.
func (h *Host) useExternal(ctx context.Context) error {
	unlock, err := h.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := h.load(); err != nil {
		return err
	}
	if h.running() {
		return fmt.Errorf("KUBECONFIG is set while our own cluster runs from %s: run `down` first, or unset KUBECONFIG", h.Layout.State)
	}
	list := filepath.SplitList(h.Kubeconfig)
	raw, err := (&clientcmd.ClientConfigLoadingRules{Precedence: list}).Load()
	if err != nil {
		return fmt.Errorf("KUBECONFIG=%s: %w", h.Kubeconfig, err)
	}
	config, err := clientcmd.NewDefaultClientConfig(*raw, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("KUBECONFIG=%s: %w", h.Kubeconfig, err)
	}
	config.Timeout = 5 * time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("KUBECONFIG=%s: %w", h.Kubeconfig, err)
	}
	if err := readyz(ctx, client); err != nil {
		return fmt.Errorf("the cluster of KUBECONFIG=%s does not answer: %w (start it, or unset KUBECONFIG to run our own)", h.Kubeconfig, err)
	}
	if err := clientcmdapi.MinifyConfig(raw); err != nil {
		return fmt.Errorf("KUBECONFIG=%s: %w", h.Kubeconfig, err)
	}
	if err := clientcmdapi.FlattenConfig(raw); err != nil {
		return fmt.Errorf("KUBECONFIG=%s: %w", h.Kubeconfig, err)
	}
	b, err := clientcmd.Write(*raw)
	if err != nil {
		return err
	}
	h.state = runState{External: h.Kubeconfig}
	if err := h.save(); err != nil {
		return err
	}
	h.Say("using the cluster of KUBECONFIG=%s", h.Kubeconfig)
	return os.WriteFile(h.Layout.Kubeconfig(), b, 0o600)
}
