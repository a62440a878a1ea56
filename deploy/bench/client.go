package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/tokenv1"
)

const clustersPath = "/api/console/clusters"

// client speaks to the gateway over HTTP with the session's cookie.
type client struct {
	base string
	http *http.Client
}

func newClient(base string) (*client, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	// Compression would be asked for by a browser; a script's curl does not, and client-go's List is not compressed below
	// its own threshold either.
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute}
	return &client{base: base, http: &http.Client{Jar: jar, Transport: transport, Timeout: 30 * time.Second}}, nil
}

// raw sends in as JSON (nil: no body) and gives the answer's body. An answer other than 2xx is an error with its text.
func (c *client) raw(ctx context.Context, method, path string, in any) ([]byte, error) {
	var body io.Reader
	if in != nil {
		encoded, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 16<<20))
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 300 {
		return nil, fmt.Errorf("%s %s: HTTP %d: %s", method, strings.SplitN(path, "?", 2)[0], response.StatusCode, strings.TrimSpace(string(answer)))
	}
	return answer, nil
}

func (c *client) call(ctx context.Context, method, path string, in, out any) error {
	body, err := c.raw(ctx, method, path, in)
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(body, out)
}

func (c *client) ready(ctx context.Context) error {
	return c.call(ctx, http.MethodGet, "/readyz", nil, nil)
}

// logIn also says where workers reach us, which join commands need.
func (c *client) logIn(ctx context.Context, password string) error {
	if err := c.call(ctx, http.MethodPost, "/api/auth/login", map[string]string{"email": adminEmail, "password": password}, nil); err != nil {
		return err
	}
	return c.call(ctx, http.MethodPut, "/api/admin/settings", map[string]any{
		"settings": map[string]string{"join_base_url": c.base, "public_base_url": c.base},
	}, nil)
}

type clusterAnswer struct {
	Cluster clusterv1.Cluster `json:"cluster"`
}

func (c *client) createCluster(ctx context.Context, name, host string) (clusterv1.Cluster, error) {
	var answer clusterAnswer
	err := c.call(ctx, http.MethodPost, clustersPath, clusterv1.CreateRequest{Name: name, ControlPlaneHost: host, ControlPlane: clusterv1.Upstream}, &answer)
	return answer.Cluster, err
}

// waitReady asks every 50 ms, as an impatient script would.
func (c *client) waitReady(ctx context.Context, id string) (clusterv1.Cluster, error) {
	var answer clusterAnswer
	err := poll(ctx, 50*time.Millisecond, func() (bool, error) {
		if err := c.call(ctx, http.MethodGet, clustersPath+"/"+id, nil, &answer); err != nil {
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
	if err := c.call(ctx, http.MethodDelete, clustersPath+"/"+id, nil, nil); err != nil {
		return err
	}
	return poll(ctx, 200*time.Millisecond, func() (bool, error) {
		var answer struct {
			Clusters []clusterv1.Cluster `json:"clusters"`
		}
		if err := c.call(ctx, http.MethodGet, clustersPath, nil, &answer); err != nil {
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
	err := c.call(ctx, http.MethodPost, clustersPath+"/"+id+"/join-token", map[string]int64{"ttl_seconds": 7200}, &answer)
	return answer, err
}
