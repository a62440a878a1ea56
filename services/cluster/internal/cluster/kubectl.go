package cluster

import (
	"context"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Kubectl runs kubectl in tenants.
type Kubectl interface {
	// Run runs one command for userID, with an identity that only reads. It fails with invalid (kubectl_refused) for what is not
	// allowed, kubectl_busy where too many run, and unavailable (tenant_unreachable) within 5 s.
	Run(ctx context.Context, userID string, c Cluster, args []string) (clusterv1.KubectlResponse, error)
}

// Commands answers who asks something by kubectl.
type Commands struct {
	service *Service
	kubectl Kubectl
}

// NewCommands joins the parts.
func NewCommands(service *Service, kubectl Kubectl) *Commands {
	return &Commands{service: service, kubectl: kubectl}
}

// Kubectl runs a command in a cluster that the principal may see. One in error may be asked too: that is how to find out why.
func (s *Commands) Kubectl(ctx context.Context, p contract.Principal, req clusterv1.KubectlRequest) (clusterv1.KubectlResponse, error) {
	c, err := s.service.find(ctx, p, req.ID, clusterv1.Viewer)
	if err != nil {
		return clusterv1.KubectlResponse{}, err
	}
	if c.Status != clusterv1.Ready && c.Status != clusterv1.Failed {
		f := fault.New(fault.Precondition, "cluster_not_ready", "the cluster %q is not ready, it is %s", c.Name, c.Status).
			Do("look at the cluster's events for how far it is")
		if c.Reason != nil && c.Reason.Action != "" {
			f = f.Do("%s", c.Reason.Action)
		}
		return clusterv1.KubectlResponse{}, f
	}
	return s.kubectl.Run(ctx, p.UserID, c, req.Args)
}
