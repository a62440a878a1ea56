package edge

import (
	"context"
	"strings"
	"time"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/edgev1"
)

// Status tells an operator how the edge does. Where HAProxy does not answer, it says so and shows what is known without it.
func (k *Keeper) Status(ctx context.Context, req edgev1.StatusRequest) (edgev1.StatusResponse, error) {
	out := edgev1.StatusResponse{Provider: "haproxy", Workers: []edgev1.Worker{}, Routes: []edgev1.Route{}}
	state, err := k.plane.State(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return out, ctx.Err()
		}
		problem := reasonOf(err)
		out.Problem = &problem
	}
	out.DataPlane.API, out.DataPlane.HAProxy, out.DataPlane.Mode = state.API, state.HAProxy, state.Mode
	if r := state.LastReload; r != nil {
		out.LastReload = &edgev1.Reload{At: r.At, OK: r.OK, Message: r.Message}
	}
	for _, w := range state.Workers {
		out.Workers = append(out.Workers, edgev1.Worker{PID: w.PID, Old: w.Old, UptimeSeconds: int64(w.Uptime / time.Second)})
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.problem != nil {
		problem := *k.problem
		out.Problem = &problem
	}
	if !k.synced.IsZero() {
		at := k.synced.UTC().Truncate(time.Millisecond)
		out.LastSync = &at
	}
	for _, e := range k.all() {
		traffic := state.Backends[e.id]
		count(&out.Count, e.State)
		out.Count.Sessions += traffic.Sessions
		if e.host <= req.After {
			continue
		}
		if len(out.Routes) == edgev1.MaxRoutes {
			out.More = true
			continue
		}
		out.Routes = append(out.Routes, e.shown(traffic))
	}
	return out, nil
}

func (e *entry) shown(traffic Traffic) edgev1.Route {
	r := edgev1.Route{
		ClusterID: e.id, Domain: e.host, State: e.State, Reason: e.Reason, Since: e.Since, Servers: []edgev1.Server{},
		Sessions: traffic.Sessions, SessionsTotal: traffic.SessionsTotal, BytesIn: traffic.BytesIn, BytesOut: traffic.BytesOut, Errors: traffic.Errors,
	}
	if e.id == Console {
		r.ClusterID = ""
	}
	if e.route == nil {
		return r
	}
	for _, target := range e.route.Targets {
		server := edgev1.Server{Address: target.String()}
		for _, s := range traffic.Servers {
			server.Up = server.Up || s.Address == target && s.Up
		}
		r.Servers = append(r.Servers, server)
	}
	return r
}

func count(c *edgev1.Count, state clusterv1.EdgeState) {
	c.Routes++
	switch state {
	case clusterv1.EdgeServing:
		c.Serving++
	case clusterv1.EdgePending:
		c.Pending++
	case clusterv1.EdgeSkipped:
		c.Skipped++
	case clusterv1.EdgeFailed:
		c.Failed++
	}
}

func compareEntries(host, id, otherHost, otherID string) int {
	if c := strings.Compare(host, otherHost); c != 0 {
		return c
	}
	return strings.Compare(id, otherID)
}
