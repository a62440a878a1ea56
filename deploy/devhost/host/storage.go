package host

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"os"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubebyon/kubebyon/deploy/devhost/process"
	"github.com/kubebyon/kubebyon/deploy/devhost/provision"
)

// ProvisionerCommand is the hidden sub-command that runs the default StorageClass.
const ProvisionerCommand = "provisioner"

// startProvisioner makes the default StorageClass and starts what answers its claims, outside of the machine: it
// needs no more than the API and the folder.
func (h *Host) startProvisioner(ctx context.Context) error {
	client, err := h.client()
	if err != nil {
		return err
	}
	if err := provision.Class(ctx, client); err != nil {
		return err
	}
	rec, err := process.Command{Name: ProvisionerCommand, Path: h.Self, Args: []string{ProvisionerCommand, h.pki("admin.kubeconfig"), h.dir("volumes")},
		Env: []string{"PATH=" + nodePath}, Log: h.dir("log/provisioner.log"), Join: process.Spaces{Cgroups: h.state.Spaces.Cgroups}}.Start()
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state.Processes = append(h.state.Processes, rec)
	return h.save()
}

// Provisioner is the body of ProvisionerCommand: kubeconfig and folder are its arguments.
func Provisioner(ctx context.Context, kubeconfig, dir string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst, config.Proxy = 50, 100, direct
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	f := provision.Folders{Client: client, Dir: dir, InNode: volumesInNode, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	return f.Run(ctx)
}

// direct keeps proxies of the environment out of the way to our own cluster.
func direct(*http.Request) (*url.URL, error) { return nil, nil }
