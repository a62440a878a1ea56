package cluster

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

const (
	// sweepEvery is how soon after an account has lost its access its kubeconfigs are taken from the tenants.
	sweepEvery = time.Second
	// sweepMost bounds one round: tenants that do not answer hold it for a few seconds.
	sweepMost = 32
	// sweepTime bounds one round, and forgetEvery is how often ended kubeconfigs are looked for that nobody needs to see any more.
	sweepTime, forgetEvery = 20 * time.Second, time.Hour
	// keepKubeconfigs is how long one that has ended is listed.
	keepKubeconfigs = 30 * 24 * time.Hour
)

// Sweep takes identities from tenants whose kubeconfig was revoked or has expired, until ctx ends. Any number of replicas may do so.
func (s *Kubeconfigs) Sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	var forgot time.Time
	for {
		if err := s.sweep(ctx); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "the search for kubeconfigs that have ended failed", slog.Any("error", err))
		}
		if time.Since(forgot) > forgetEvery {
			forgot = time.Now()
			if err := s.store.ForgetKubeconfigs(ctx, s.service.now().Add(-keepKubeconfigs)); err != nil && ctx.Err() == nil {
				s.log.WarnContext(ctx, "old kubeconfigs could not be forgotten", slog.Any("error", err))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *Kubeconfigs) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	due, err := s.store.DueKubeconfigs(ctx, sweepMost)
	byCluster := map[string][]Kubeconfig{}
	for _, k := range due {
		byCluster[k.ClusterID] = append(byCluster[k.ClusterID], k)
	}
	var all sync.WaitGroup
	for id, ended := range byCluster {
		all.Go(func() { s.clear(ctx, id, ended) })
	}
	all.Wait()
	return err
}

// clear gives up at the first that fails: the tenant would be as silent to the others, and all of them are tried again.
func (s *Kubeconfigs) clear(ctx context.Context, clusterID string, ended []Kubeconfig) {
	c, err := s.store.ClusterOf(ctx, clusterID)
	for _, k := range ended {
		if err == nil {
			err = s.expel(ctx, c, k)
		}
		if err != nil {
			break
		}
	}
	if err != nil && ctx.Err() == nil && !fault.Is(err, fault.NotFound) { // which is: removed with its cluster
		s.log.WarnContext(ctx, "identities of kubeconfigs that have ended could not be taken from a tenant yet; it is tried again",
			slog.String("cluster", clusterID), slog.Any("error", err))
	}
}
