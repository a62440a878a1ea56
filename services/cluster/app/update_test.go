package app

import (
	"strings"
	"testing"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// From the answer to the update on a cluster says what is on its way; the route is told apart from the rest, for it is the edge's.
func TestAnUpdateShows(t *testing.T) {
	conn, pool := startService(t)
	c := newCluster(t, conn, alice, "moved")
	made := func(generation int) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), `UPDATE clusters SET status = 'ready', reason_code = '', api_endpoint = 'https://k8s.example.com:30000', generation = $2 WHERE id = $1`, c.ID, generation); err != nil {
			t.Fatal(err)
		}
	}
	made(70)
	host, mode := "moved.example.com", clusterv1.LoadBalancer
	update := clusterv1.UpdateRequest{ID: c.ID, ControlPlaneHost: &host, PublicAccessMode: &mode}
	got, err := ask(t, conn, alice, clusterv1.Update, update)
	if err != nil || got.Status != clusterv1.Provisioning || got.Reason == nil || got.Reason.Code != "updating" ||
		!strings.Contains(got.Reason.Message, "moved.example.com by loadbalancer") || got.Edge == nil || got.Edge.Reason.Code != "edge_not_asked" {
		t.Fatalf("%+v, %+v, %v", got, got.Reason, err)
	}
	if _, err := ask(t, conn, alice, clusterv1.Kubeconfig, clusterv1.KubeconfigRequest{ID: c.ID}); codeOf(err) != "cluster_not_ready" {
		t.Errorf("a kubeconfig for nobody knows where: %v", err)
	}
	// What is ready is not served yet, and says so until the edge has proved the new domain; what it says of another one does not count.
	made(80)
	serving := clusterv1.EdgeReport{ID: c.ID, Host: "k8s.example.com", Edge: clusterv1.Edge{State: clusterv1.EdgeServing}}
	if err := report(t, conn, serving); err != nil {
		t.Fatal(err)
	}
	if got := get(t, conn, c.ID); got.Status != clusterv1.Ready || got.Edge.State != clusterv1.EdgePending {
		t.Errorf("%+v, %+v", got, got.Edge)
	}
	serving.Host = host
	if err := report(t, conn, serving); err != nil {
		t.Fatal(err)
	}
	if got := get(t, conn, c.ID); got.Edge.State != clusterv1.EdgeServing || got.Edge.Reason != nil {
		t.Errorf("%+v", got.Edge)
	}
	// The same again is no update; back at a port it has no route.
	if got, err := ask(t, conn, alice, clusterv1.Update, update); err != nil || got.Status != clusterv1.Ready || got.Reason != nil {
		t.Errorf("%+v, %v", got, err)
	}
	mode = clusterv1.NodePort
	if got, err := ask(t, conn, alice, clusterv1.Update, update); err != nil || got.Status != clusterv1.Provisioning || got.Reason == nil || got.Reason.Code != "updating" || got.Edge != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if page := published(t, conn, ""); len(page.Clusters) != 0 {
		t.Errorf("a route is asked for: %+v", page)
	}
	// One that was never ready is being made as before.
	fresh := newCluster(t, conn, alice, "fresh")
	if got, err := ask(t, conn, alice, clusterv1.Update, clusterv1.UpdateRequest{ID: fresh.ID, ControlPlaneHost: &host}); err != nil || got.Reason != nil {
		t.Errorf("%+v, %v", got.Reason, err)
	}
	// Without a base domain nothing is given out.
	address, err := ask(t, conn, alice, clusterv1.Create, clusterv1.CreateRequest{Name: "address", ControlPlaneHost: "198.18.0.2"})
	if err != nil {
		t.Fatal(err)
	}
	mode = clusterv1.LoadBalancer
	_, err = ask(t, conn, alice, clusterv1.Update, clusterv1.UpdateRequest{ID: address.ID, PublicAccessMode: &mode})
	if f := fault.From(err); err == nil || f.Code != "host_must_be_domain" || f.Field != "control_plane_host" || !strings.Contains(f.Action, "give a domain") {
		t.Errorf("an address behind the balancer: %v", err)
	}
}
