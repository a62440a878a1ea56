package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/kubebyon/kubebyon/deploy/apiclient"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/tokenv1"
)

const clustersPath = "/api/console/clusters"

// client is what the benchmarks ask of the API.
type client struct{ *apiclient.Client }

func newClient(base string) (*client, error) {
	// Compression would be asked for by a browser; a script's curl does not, and client-go's List is not compressed below
	// its own threshold either.
	c, err := apiclient.New(base, &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute})
	return &client{c}, err
}

func (c *client) ready(ctx context.Context) error {
	return c.Call(ctx, http.MethodGet, "/readyz", nil, nil)
}

// logIn also says where workers reach us, which join commands need.
func (c *client) logIn(ctx context.Context, password string) error {
	if err := c.Call(ctx, http.MethodPost, "/api/auth/login", map[string]string{"email": adminEmail, "password": password}, nil); err != nil {
		return err
	}
	return c.Call(ctx, http.MethodPut, "/api/admin/settings", map[string]any{
		"settings": map[string]string{"join_base_url": c.Base, "public_base_url": c.Base},
	}, nil)
}

type clusterAnswer struct {
	Cluster clusterv1.Cluster `json:"cluster"`
}

func (c *client) createCluster(ctx context.Context, name, host string) (clusterv1.Cluster, error) {
	var answer clusterAnswer
	err := c.Call(ctx, http.MethodPost, clustersPath, clusterv1.CreateRequest{Name: name, ControlPlaneHost: host, ControlPlane: clusterv1.Upstream}, &answer)
	return answer.Cluster, err
}

// waitReady asks every 50 ms, as an impatient script would.
func (c *client) waitReady(ctx context.Context, id string) (clusterv1.Cluster, error) {
	var answer clusterAnswer
	err := apiclient.Poll(ctx, 50*time.Millisecond, func() (bool, error) {
		if err := c.Call(ctx, http.MethodGet, clustersPath+"/"+id, nil, &answer); err != nil {
			return false, err
		}
		if answer.Cluster.Status == clusterv1.Failed {
			return false, fmt.Errorf("cluster %s is in error: %+v", id, answer.Cluster.Reason)
		}
		return answer.Cluster.Status == clusterv1.Ready, nil
	})
	return answer.Cluster, err
}

// deleteCluster waits until it is gone.
func (c *client) deleteCluster(ctx context.Context, id string) error {
	if err := c.Call(ctx, http.MethodDelete, clustersPath+"/"+id, nil, nil); err != nil {
		return err
	}
	return apiclient.Poll(ctx, 200*time.Millisecond, func() (bool, error) {
		var answer struct {
			Clusters []clusterv1.Cluster `json:"clusters"`
		}
		if err := c.Call(ctx, http.MethodGet, clustersPath, nil, &answer); err != nil {
			return false, err
		}
		for _, one := range answer.Clusters {
			if one.ID == id {
				return false, nil
			}
		}
		return true, nil
	})
}

func (c *client) joinToken(ctx context.Context, id string) (tokenv1.CreateResponse, error) {
	var answer tokenv1.CreateResponse
	err := c.Call(ctx, http.MethodPost, clustersPath+"/"+id+"/join-token", map[string]int64{"ttl_seconds": 7200}, &answer)
	return answer, err
}
