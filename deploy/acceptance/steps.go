package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kubebyon/kubebyon/deploy/apiclient"
	"github.com/kubebyon/kubebyon/deploy/devhost/machine"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/nodev1"
	"github.com/kubebyon/kubebyon/pkg/contract/tokenv1"
)

// farewell is what the join script says last.
const farewell = "This node has joined the cluster"

// acceptance is the run itself. Each step stands on those before it.
func acceptance(ctx context.Context, s *stack, r *report) error {
	c, err := newClient(s.baseURL)
	if err != nil {
		return err
	}
	var (
		cluster clusterv1.Cluster
		token   tokenv1.CreateResponse
		t       *tenant
		logs    *follower
	)
	defer func() {
		if logs != nil {
			logs.stop()
		}
	}()
	steps := []struct {
		name, says string
		limit      time.Duration
		do         func(context.Context) error
	}{
		{"healthz", "the API answers", 30 * time.Second, func(ctx context.Context) error {
			return eventually(ctx, c.health)
		}},
		{"readyz", "every part of it is ready", time.Minute, func(ctx context.Context) error {
			return eventually(ctx, c.ready)
		}},
		{"log_in", "the first administrator logs in and says where workers reach us", 10 * time.Second, func(ctx context.Context) error {
			if err := c.logIn(ctx, adminEmail, s.adminPassword); err != nil {
				return err
			}
			return c.setJoinBaseURL(ctx, s.baseURL)
		}},
		{"create", "a cluster is asked for", 5 * time.Second, func(ctx context.Context) error {
			var err error
			cluster, err = c.createCluster(ctx, clusterv1.CreateRequest{Name: "demo", ControlPlaneHost: s.controlPlaneHost()})
			s.clusterID = cluster.ID
			if err == nil && cluster.Status != clusterv1.Provisioning {
				err = fmt.Errorf("the new cluster is %s, want %s", cluster.Status, clusterv1.Provisioning)
			}
			return err
		}},
		{"list_and_get", "it is listed", 5 * time.Second, func(ctx context.Context) error {
			all, err := c.clusters(ctx)
			if err != nil {
				return err
			}
			if len(all) != 1 || all[0].ID != cluster.ID {
				return fmt.Errorf("the list holds %d clusters, want the one just made", len(all))
			}
			_, err = c.cluster(ctx, cluster.ID)
			return err
		}},
		{"ready", "its control plane is up: a node could join", 3 * time.Minute, func(ctx context.Context) error {
			var err error
			cluster, err = c.waitReady(ctx, cluster.ID)
			return err
		}},
		{"join_token", "a join command is made", 10 * time.Second, func(ctx context.Context) error {
			var err error
			token, err = c.joinToken(ctx, cluster.ID, 2*time.Hour)
			return err
		}},
		{"join_bookworm", "Debian 12 runs it; the node is not_ready, then ready", 4 * time.Minute, func(ctx context.Context) error {
			return s.join(ctx, c, cluster.ID, token.JoinCommand, s.workers[0], true)
		}},
		{"join_trixie", "Debian 13 runs it", 4 * time.Minute, func(ctx context.Context) error {
			return s.join(ctx, c, cluster.ID, token.JoinCommand, s.workers[1], false)
		}},
		{"join_without_systemd", "a machine without systemd runs it", 4 * time.Minute, func(ctx context.Context) error {
			return s.join(ctx, c, cluster.ID, token.JoinCommand, s.workers[2], false)
		}},
		{"join_again", "running it twice changes nothing", time.Minute, func(ctx context.Context) error {
			return runJoin(ctx, s.workers[0], token.JoinCommand)
		}},
		{"kubeconfig", "the kubeconfig is downloaded and works", time.Minute, func(ctx context.Context) error {
			kubeconfig, err := c.kubeconfig(ctx, cluster.ID)
			if err != nil {
				return err
			}
			if t, err = newTenant(kubeconfig); err != nil {
				return err
			}
			return t.keep(ctx, cluster.ID)
		}},
		{"smoke", "a Pod on each node looks names up in the tenant's DNS", 3 * time.Minute, func(ctx context.Context) error {
			for _, worker := range s.workers {
				if err := t.smoke(ctx, worker.Name); err != nil {
					return err
				}
			}
			return nil
		}},
		{"pod_deleted", "the control plane's Pod is deleted; the tenant's data are still there", 3 * time.Minute, func(ctx context.Context) error {
			if err := s.deleteControlPlanePod(ctx, cluster); err != nil {
				return err
			}
			return t.kept(ctx, cluster.ID)
		}},
		{"published", "the cluster moves to a domain behind HAProxy, which a TLS handshake proves", 2 * time.Minute, func(ctx context.Context) error {
			var err error
			cluster, err = s.publish(ctx, c, cluster.ID)
			return err
		}},
		{"through_haproxy", "kubectl get ns and curl -sk https://<domain>/version work through it", time.Minute, func(ctx context.Context) error {
			return s.throughHAProxy(ctx, c, cluster.ID)
		}},
		{"runbook", "the operator's runbook, command by command", 4 * time.Minute, func(ctx context.Context) error {
			return s.runRunbook(ctx)
		}},
		{"join_by_domain", "a machine that knows the domain alone joins", 4 * time.Minute, func(ctx context.Context) error {
			return s.joinByDomain(ctx, c, cluster.ID)
		}},
		{"logs_followed", "kubectl logs -f reads a Pod through HAProxy", 2 * time.Minute, func(ctx context.Context) error {
			var err error
			logs, err = s.follow(ctx, t, s.workers[0].Name)
			return err
		}},
		{"killed_mid_install", "kubebyon-api is killed with -9 during an install; its restart finishes it", 5 * time.Minute, func(ctx context.Context) error {
			return s.killMidInstall(ctx, c)
		}},
		{"logs_kept", "kubectl logs -f has not noticed", time.Minute, func(ctx context.Context) error {
			return logs.still(ctx)
		}},
		{"edge_taken_up", "the edge serves the domain again", time.Minute, func(ctx context.Context) error {
			if _, err := c.waitServing(ctx, cluster.ID); err != nil {
				return err
			}
			return s.throughHAProxy(ctx, c, cluster.ID)
		}},
		{"kept", "the first tenant still has its data and its nodes", time.Minute, func(ctx context.Context) error {
			if err := t.kept(ctx, cluster.ID); err != nil {
				return err
			}
			return eventually(ctx, func(ctx context.Context) error { return allReady(ctx, c, cluster.ID, len(s.workers)) })
		}},
	}
	for _, step := range steps {
		if err := r.step(ctx, step.name, step.says, step.limit, step.do); err != nil {
			return err
		}
	}
	return nil
}

// join runs the command on the worker and waits until the API shows its node ready. Where the node must be seen not_ready
// first, the API is watched from before the command runs.
func (s *stack) join(ctx context.Context, c *client, clusterID, command string, worker *machine.Machine, seenNotReady bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watched := make(chan error, 1)
	go func() {
		saw := false
		watched <- apiclient.Poll(ctx, 100*time.Millisecond, func() (bool, error) {
			nodes, err := c.nodes(ctx, clusterID)
			if err != nil {
				return false, err
			}
			for _, node := range nodes {
				if node.Name != worker.Name {
					continue
				}
				if node.Status == nodev1.NotReady {
					saw = true
					continue
				}
				if seenNotReady && !saw {
					return false, errors.New("the node was never shown as not_ready")
				}
				return true, nil
			}
			return false, nil
		})
	}()
	if err := runJoin(ctx, worker, command); err != nil {
		return err
	}
	if err := <-watched; err != nil {
		nodes, _ := c.nodes(context.WithoutCancel(ctx), clusterID)
		return fmt.Errorf("%s did not become ready: %w; nodes: %+v", worker.Name, err, nodes)
	}
	return nil
}

func runJoin(ctx context.Context, worker *machine.Machine, command string) error {
	var out bytes.Buffer
	if err := worker.Exec(ctx, nil, &out, &out, "/bin/sh", "-c", command); err != nil {
		return fmt.Errorf("the join command failed on %s: %w\n%s", worker.Name, err, out.String())
	}
	if !strings.Contains(out.String(), farewell) {
		return fmt.Errorf("the join command on %s did not say %q:\n%s", worker.Name, farewell, out.String())
	}
	return nil
}

func allReady(ctx context.Context, c *client, clusterID string, want int) error {
	nodes, err := c.nodes(ctx, clusterID)
	if err != nil {
		return err
	}
	ready := 0
	for _, node := range nodes {
		if node.Status == nodev1.Ready {
			ready++
		}
	}
	if ready != want {
		return fmt.Errorf("%d of %d nodes are ready, want %d", ready, len(nodes), want)
	}
	return nil
}

// eventually repeats do until it succeeds; the error is the last one.
func eventually(ctx context.Context, do func(context.Context) error) error {
	var last error
	err := apiclient.Poll(ctx, 100*time.Millisecond, func() (bool, error) {
		last = do(ctx)
		return last == nil, nil
	})
	if err != nil && last != nil {
		return last
	}
	return err
}
