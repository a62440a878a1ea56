package app

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

func TestDomainsThatContradictEachOther(t *testing.T) {
	for what, more := range map[string]map[string]string{
		"the console's":          {"KUBEBYON_CONSOLE_DOMAIN": "K8S.example.com", "KUBEBYON_BASE_DOMAIN": "k8s.example.com."},
		"beneath the console's":  {"KUBEBYON_CONSOLE_DOMAIN": "example.com", "KUBEBYON_BASE_DOMAIN": "k8s.example.com"},
		"beneath a reserved one": {"KUBEBYON_RESERVED_DOMAINS": "example.org, Example.com", "KUBEBYON_BASE_DOMAIN": "k8s.example.com"},
	} {
		_, err := LoadConfig(environment(t, more))
		if err == nil || !strings.HasPrefix(err.Error(), "KUBEBYON_BASE_DOMAIN: ") || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "accepts") {
			t.Errorf("%s: %v", what, err)
		}
	}
	cfg, err := LoadConfig(environment(t, map[string]string{
		"KUBEBYON_CONSOLE_DOMAIN": "Console.example.com.", "KUBEBYON_BASE_DOMAIN": "K8S.example.com", "KUBEBYON_RESERVED_DOMAINS": "example.org, Corp.Internal.",
	}))
	if d := cfg.domains; err != nil || d.Console != "console.example.com" || d.Base != "k8s.example.com" || strings.Join(d.Reserved, " ") != "example.org corp.internal" {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestDomainsOfTenants(t *testing.T) {
	url, dsn := natstest.New(t), pgtest.New(t)
	run(t, map[string]string{
		"KUBEBYON_DATABASE_DSN": dsn, "KUBEBYON_NATS_URL": url, "KUBEBYON_PROVISION_TIMEOUT": "2h",
		"KUBEBYON_CONSOLE_DOMAIN": "console.example.com", "KUBEBYON_BASE_DOMAIN": "k8s.example.com", "KUBEBYON_RESERVED_DOMAINS": "corp.internal",
	})
	conn := dial(t, url)
	eventually(t, 20*time.Second, "the service", func() bool { return answers(conn) })
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	create := func(name, host string, mode clusterv1.AccessMode) (clusterv1.Cluster, error) {
		return ask(t, conn, alice, clusterv1.Create, clusterv1.CreateRequest{Name: name, ControlPlaneHost: host, PublicAccessMode: mode})
	}
	reserved := func(what string, err error) {
		t.Helper()
		if f := fault.From(err); f.Code != "control_plane_host_reserved" || f.Kind != fault.Invalid || f.Field != "control_plane_host" || !strings.Contains(f.Action, "k8s.example.com") {
			t.Errorf("%s: %v, do %q", what, err, f.Action)
		}
	}
	for _, host := range []string{"console.example.com", "CONSOLE.example.com.", "a.console.example.com", "example.com", "login.example.com", "k8s.example.com", "x.corp.internal"} {
		_, err := create("demo", host, clusterv1.LoadBalancer)
		reserved(host, err)
	}

	// Names that are given out: under the base, each its own, and asked for by nobody else.
	form := regexp.MustCompile(`^demo-one-[a-z0-9]{5}\.k8s\.example\.com$`)
	first, err := create("Demo One", " ", clusterv1.LoadBalancer)
	if err != nil || !form.MatchString(first.ControlPlaneHost) || first.Edge == nil {
		t.Fatalf("%+v, %v", first, err)
	}
	twin, err := ask(t, conn, bob, clusterv1.Create, clusterv1.CreateRequest{Name: "Demo One", PublicAccessMode: clusterv1.LoadBalancer})
	if err != nil || !form.MatchString(twin.ControlPlaneHost) || twin.ControlPlaneHost == first.ControlPlaneHost {
		t.Errorf("%+v, %v", twin, err)
	}
	if _, err := create("other", strings.ToUpper(first.ControlPlaneHost), clusterv1.LoadBalancer); codeOf(err) != "control_plane_host_taken" {
		t.Errorf("a domain of another's: %v", err)
	}
	own, err := create("own", "Api.Demo.Example.NET.", clusterv1.LoadBalancer)
	if err != nil || own.ControlPlaneHost != "api.demo.example.net" {
		t.Errorf("%+v, %v", own, err)
	}

	// By PATCH as by POST: of the host, of the mode, and of both.
	byPort, err := create("by-port", "console.example.com", clusterv1.NodePort)
	if err != nil {
		t.Fatal(err)
	}
	update := func(id, host string, mode clusterv1.AccessMode) (clusterv1.Cluster, error) {
		req := clusterv1.UpdateRequest{ID: id}
		if host != "" {
			req.ControlPlaneHost = &host
		}
		if mode != "" {
			req.PublicAccessMode = &mode
		}
		return ask(t, conn, alice, clusterv1.Update, req)
	}
	_, err = update(byPort.ID, "", clusterv1.LoadBalancer)
	reserved("a mode", err)
	_, err = update(byPort.ID, "login.example.com", clusterv1.LoadBalancer)
	reserved("both", err)
	_, err = update(own.ID, "example.com", "")
	reserved("a host", err)
	if _, err = update(own.ID, twin.ControlPlaneHost, ""); codeOf(err) != "control_plane_host_taken" {
		t.Errorf("to a domain of another's: %v", err)
	}
	if got, err := update(byPort.ID, "by-port.k8s.example.com", clusterv1.LoadBalancer); err != nil || got.ControlPlaneHost != "by-port.k8s.example.com" || got.Edge == nil {
		t.Errorf("%+v, %v", got, err)
	}
	// An address is no domain: a cluster that was reached at one gets a name, as one that is made does, unless it names its own.
	byAddress, err := create("by-address", "198.18.0.2", clusterv1.NodePort)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := update(byAddress.ID, "198.18.0.3", clusterv1.LoadBalancer); codeOf(err) != "host_must_be_domain" {
		t.Errorf("an address that was asked for: %v", err)
	}
	given := regexp.MustCompile(`^by-address-[a-z0-9]{5}\.k8s\.example\.com$`)
	if got, err := update(byAddress.ID, "", clusterv1.LoadBalancer); err != nil || !given.MatchString(got.ControlPlaneHost) || got.PublicAccessMode != clusterv1.LoadBalancer || got.Edge == nil {
		t.Errorf("%+v, %v", got, err)
	}
	if former := formerHosts(t, pool, byAddress.ID); former != "198.18.0.2" {
		t.Errorf("its certificate is for %q besides", former)
	}
	if page := published(t, conn, ""); len(page.Clusters) != 5 {
		t.Errorf("published are %+v", page.Clusters)
	}
}

// A cluster of the time when an address was let through behind the load balancer.
func TestOldClusterWithAnAddress(t *testing.T) {
	conn, pool := startService(t)
	old := func(name, host string) clusterv1.Cluster {
		t.Helper()
		c := newCluster(t, conn, alice, name)
		if _, err := pool.Exec(t.Context(), `UPDATE clusters SET public_access_mode = 'loadbalancer', control_plane_host = $2, status = 'ready', generation = 7 WHERE id = $1`, c.ID, host); err != nil {
			t.Fatal(err)
		}
		return c
	}
	c, other := old("old", "10.0.0.7"), old("other", "2001:db8::1")
	list, err := ask(t, conn, alice, clusterv1.List, clusterv1.ListRequest{})
	if err != nil || len(list.Clusters) != 2 || list.Clusters[1].ControlPlaneHost != "10.0.0.7" || list.Clusters[1].Edge == nil {
		t.Errorf("%+v, %v", list, err)
	}
	if page := published(t, conn, ""); len(page.Clusters) != 2 {
		t.Errorf("the edge does not get to know of it: %+v", page)
	}
	why := clusterv1.Reason{Code: "host_is_address", Message: "an IP address is no domain", Action: "PATCH control_plane_host to a domain"}
	if err := report(t, conn, clusterv1.EdgeReport{ID: c.ID, Host: "10.0.0.7", Edge: clusterv1.Edge{State: clusterv1.EdgeSkipped, Reason: &why}}); err != nil {
		t.Fatal(err)
	}
	if got := get(t, conn, c.ID); got.Edge.State != clusterv1.EdgeSkipped || *got.Edge.Reason != why {
		t.Errorf("%+v", got.Edge)
	}

	// Its name can change; its host only to a domain.
	name, address, domain, mode := "renamed", "10.0.0.8", "old.example.com", clusterv1.LoadBalancer
	if got, err := ask(t, conn, alice, clusterv1.Update, clusterv1.UpdateRequest{ID: c.ID, Name: &name}); err != nil || got.Name != name || got.ControlPlaneHost != "10.0.0.7" || got.Edge.State != clusterv1.EdgeSkipped {
		t.Errorf("%+v, %v", got, err)
	}
	for what, req := range map[string]clusterv1.UpdateRequest{
		"another address": {ID: c.ID, ControlPlaneHost: &address}, "the mode that it has": {ID: c.ID, PublicAccessMode: &mode},
	} {
		if _, err := ask(t, conn, alice, clusterv1.Update, req); codeOf(err) != "host_must_be_domain" {
			t.Errorf("%s: %v", what, err)
		}
	}
	got, err := ask(t, conn, alice, clusterv1.Update, clusterv1.UpdateRequest{ID: c.ID, ControlPlaneHost: &domain})
	if err != nil || got.ControlPlaneHost != domain || got.Status != clusterv1.Provisioning || got.Edge.Reason.Code != "edge_not_asked" {
		t.Errorf("%+v, %v", got, err)
	}
	if former := formerHosts(t, pool, c.ID); former != "10.0.0.7" {
		t.Errorf("its certificate is for %q besides", former)
	}
	if got, err := ask(t, conn, alice, clusterv1.Delete, clusterv1.DeleteRequest{ID: other.ID}); err != nil || got.Status != clusterv1.Deleting {
		t.Errorf("%+v, %v", got, err)
	}
}

func formerHosts(t *testing.T, pool *pgxpool.Pool, id string) string {
	t.Helper()
	var out string
	if err := pool.QueryRow(t.Context(), `SELECT array_to_string(former_hosts, ' ') FROM clusters WHERE id = $1`, id).Scan(&out); err != nil {
		t.Fatal(err)
	}
	return out
}
