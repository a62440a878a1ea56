package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kubebyon/kubebyon/deploy/apiclient"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/nodev1"
	"github.com/kubebyon/kubebyon/pkg/contract/tokenv1"
)

// client is what the run asks of the API.
type client struct{ *apiclient.Client }

func newClient(base string) (*client, error) {
	c, err := apiclient.New(base, nil)
	return &client{c}, err
}

func (c *client) health(ctx context.Context) error {
	var health struct {
		Status string `json:"status"`
	}
	if err := c.Call(ctx, http.MethodGet, "/healthz", nil, &health); err != nil {
		return err
	}
	if health.Status != "ok" {
		return fmt.Errorf("/healthz says %q", health.Status)
	}
	return nil
}

func (c *client) ready(ctx context.Context) error {
	return c.Call(ctx, http.MethodGet, "/readyz", nil, nil)
}

func (c *client) logIn(ctx context.Context, email, password string) error {
	return c.Call(ctx, http.MethodPost, "/api/auth/login", map[string]string{"email": email, "password": password}, nil)
}

func (c *client) setJoinBaseURL(ctx context.Context, joinBaseURL string) error {
	return c.Call(ctx, http.MethodPut, "/api/admin/settings", map[string]any{
		"settings": map[string]string{"join_base_url": joinBaseURL, "public_base_url": joinBaseURL},
	}, nil)
}

func (c *client) createCluster(ctx context.Context, request clusterv1.CreateRequest) (clusterv1.Cluster, error) {
	var answer struct {
		Cluster clusterv1.Cluster `json:"cluster"`
	}
	err := c.Call(ctx, http.MethodPost, "/api/console/clusters", request, &answer)
	return answer.Cluster, err
}

func (c *client) clusters(ctx context.Context) ([]clusterv1.Cluster, error) {
	var answer struct {
		Clusters []clusterv1.Cluster `json:"clusters"`
	}
	err := c.Call(ctx, http.MethodGet, "/api/console/clusters", nil, &answer)
	return answer.Clusters, err
}

func (c *client) cluster(ctx context.Context, id string) (clusterv1.Cluster, error) {
	var answer struct {
		Cluster clusterv1.Cluster `json:"cluster"`
	}
	err := c.Call(ctx, http.MethodGet, "/api/console/clusters/"+id, nil, &answer)
	return answer.Cluster, err
}

func (c *client) updateCluster(ctx context.Context, id string, change map[string]any) error {
	return c.Call(ctx, http.MethodPatch, "/api/console/clusters/"+id, change, nil)
}

func (c *client) deleteCluster(ctx context.Context, id string) error {
	return c.Call(ctx, http.MethodDelete, "/api/console/clusters/"+id, nil, nil)
}

func (c *client) events(ctx context.Context, id string) ([]clusterv1.Event, error) {
	var answer struct {
		Events []clusterv1.Event `json:"events"`
	}
	err := c.Call(ctx, http.MethodGet, "/api/console/clusters/"+id+"/events", nil, &answer)
	return answer.Events, err
}

func (c *client) kubeconfig(ctx context.Context, id string) ([]byte, error) {
	return c.Raw(ctx, http.MethodGet, "/api/console/clusters/"+id+"/kubeconfig", nil)
}

func (c *client) joinToken(ctx context.Context, id string, ttl time.Duration) (tokenv1.CreateResponse, error) {
	var answer tokenv1.CreateResponse
	err := c.Call(ctx, http.MethodPost, "/api/console/clusters/"+id+"/join-token",
		map[string]int64{"ttl_seconds": int64(ttl.Seconds())}, &answer)
	return answer, err
}

func (c *client) nodes(ctx context.Context, id string) ([]nodev1.Node, error) {
	var answer struct {
		Nodes []nodev1.Node `json:"nodes"`
	}
	err := c.Call(ctx, http.MethodGet, "/api/console/nodes?cluster_id="+id, nil, &answer)
	return answer.Nodes, err
}

// waitReady polls a cluster until it is ready; a cluster in error ends the wait with its reason and its timeline.
func (c *client) waitReady(ctx context.Context, id string) (clusterv1.Cluster, error) {
	var last clusterv1.Cluster
	err := apiclient.Poll(ctx, 100*time.Millisecond, func() (bool, error) {
		var err error
		if last, err = c.cluster(ctx, id); err != nil {
			return false, err
		}
		if last.Status == clusterv1.Failed {
			return false, errors.New(c.explain(ctx, last))
		}
		return last.Status == clusterv1.Ready, nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("not ready in time: %s", c.explain(context.WithoutCancel(ctx), last))
	}
	return last, err
}

func (c *client) explain(ctx context.Context, cluster clusterv1.Cluster) string {
	text := fmt.Sprintf("cluster %s is %s", cluster.ID, cluster.Status)
	if cluster.Reason != nil {
		text += fmt.Sprintf(": %s: %s; %s", cluster.Reason.Code, cluster.Reason.Message, cluster.Reason.Action)
	}
	events, err := c.events(ctx, cluster.ID)
	if err != nil {
		return text
	}
	for _, event := range events {
		text += fmt.Sprintf("\n    %s %s %s: %s", event.At.Format(time.TimeOnly), event.Level, event.Code, event.Message)
	}
	return text
}
