package kubectl

import (
	"context"
	"errors"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/tenant"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
)

// runTime is all that a command may take once it runs.
const runTime = 15 * time.Second

// Options of an Executor.
type Options struct {
	// Check gives the arguments that are run instead of args, or the fault kubectl_refused.
	Check func(args []string) ([]string, error)
	// AllowLoopback lets tenants' APIs be at a loopback address. It is for tests on one machine.
	AllowLoopback bool
	Now           func() time.Time
}

// Executor implements cluster.Kubectl.
type Executor struct {
	check   func([]string) ([]string, error)
	readers *readers
	turns   *turns
	limit   time.Duration
}

// New reaches tenants through host, whose credential needs get on secrets and services, and list on nodes.
func New(host kubernetes.Interface, o Options) (*Executor, error) {
	readers, err := newReaders(host, o.AllowLoopback, o.Now)
	if err != nil {
		return nil, err
	}
	return &Executor{check: o.Check, readers: readers, turns: newTurns(usual()), limit: runTime}, nil
}

// Run implements cluster.Kubectl.
func (e *Executor) Run(ctx context.Context, userID string, c cluster.Cluster, args []string) (clusterv1.KubectlResponse, error) {
	checked, err := e.check(args)
	if err != nil {
		return clusterv1.KubectlResponse{}, err
	}
	done, err := e.turns.take(ctx, userID, c.ID)
	if err != nil {
		return clusterv1.KubectlResponse{}, err
	}
	defer done()
	answerBy := time.Now().Add(patience)
	r, err := e.readers.get(ctx, c, nil)
	if err != nil {
		return clusterv1.KubectlResponse{}, err
	}
	s := &session{readers: e.readers, cluster: c, current: r}
	res, err := run{args: checked, api: s, server: r.endpoint, answerBy: answerBy, limit: e.limit}.do(ctx)
	var tenants apiError
	if errors.As(err, &tenants) {
		return clusterv1.KubectlResponse{}, tenant.Explain(ctx, c.Name, s.reader().endpoint, tenants.error)
	}
	return res, err
}
