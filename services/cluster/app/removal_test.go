package app

import (
	"strings"
	"testing"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

func TestDeletionProtection(t *testing.T) {
	conn, pool := startService(t)
	c, err := ask(t, conn, alice, clusterv1.Create, clusterv1.CreateRequest{Name: "kept", ControlPlaneHost: "k8s.example.com", DeletionProtection: true})
	if err != nil || !c.DeletionProtection {
		t.Fatalf("%+v, %v", c, err)
	}
	if newCluster(t, conn, alice, "plain").DeletionProtection {
		t.Error("protected without being asked for")
	}
	var generation int64
	row := func() (now int64) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), `SELECT generation FROM clusters WHERE id = $1`, c.ID).Scan(&now); err != nil {
			t.Fatal(err)
		}
		return now
	}
	generation = row()
	for _, p := range []contract.Principal{alice, admin} {
		_, err := ask(t, conn, p, clusterv1.Delete, clusterv1.DeleteRequest{ID: c.ID})
		if f := fault.From(err); codeOf(err) != "deletion_protected" || f.Kind != fault.Precondition || !strings.Contains(f.Action, "deletion_protection false") {
			t.Errorf("deleted by %s: %v, do %q", p.UserID, err, f.Action)
		}
	}
	if _, err := ask(t, conn, bob, clusterv1.Delete, clusterv1.DeleteRequest{ID: c.ID}); codeOf(err) != "cluster_not_found" {
		t.Errorf("a stranger learns of it: %v", err)
	}
	// An editor may leave it as it is, or unprotected what is not protected, and change other things beside.
	if err := setMember(t, conn, alice, c.ID, bob.UserID, clusterv1.Editor); err != nil {
		t.Fatal(err)
	}
	if _, err := protect(t, conn, bob, c.ID, true); err != nil {
		t.Error(err)
	}
	name, no, yes := "renamed", false, true
	if _, err := ask(t, conn, bob, clusterv1.Update, clusterv1.UpdateRequest{ID: c.ID, Name: &name, DeletionProtection: &no}); codeOf(err) != "cluster_access_insufficient" {
		t.Errorf("an editor takes the protection away: %v", err)
	}
	if got := get(t, conn, c.ID); got.Name != "kept" || !got.DeletionProtection {
		t.Errorf("half of a refused change: %+v", got)
	}
	if _, err := protect(t, conn, alice, c.ID, false); err != nil {
		t.Fatal(err)
	}
	if _, err := protect(t, conn, bob, c.ID, false); err != nil {
		t.Error(err)
	}
	if got, err := ask(t, conn, bob, clusterv1.Update, clusterv1.UpdateRequest{ID: c.ID, Name: &name, DeletionProtection: &yes}); err != nil || got.Name != name || !got.DeletionProtection {
		t.Errorf("%+v, %v", got, err)
	}
	if now := row(); now != generation {
		t.Errorf("the protection made work: generation %d after %d", now, generation)
	}
	events, err := ask(t, conn, alice, clusterv1.Events, clusterv1.EventsRequest{ID: c.ID})
	var told []string
	for _, e := range events.Events {
		if strings.HasSuffix(e.Code, "protected") {
			told = append(told, e.Code+": "+e.Message)
		}
	}
	if got := strings.Join(told, " | "); err != nil || got != "unprotected: no longer protected from deletion | protected: protected from deletion; the name was changed" {
		t.Errorf("told %q, %v", got, err)
	}
	// What is going is not protected any more.
	if _, err := protect(t, conn, alice, c.ID, false); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(t, conn, alice, clusterv1.Delete, clusterv1.DeleteRequest{ID: c.ID}); err != nil || got.Status != clusterv1.Deleting {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := protect(t, conn, alice, c.ID, true); codeOf(err) != "cluster_deleting" {
		t.Errorf("protected while it is deleted: %v", err)
	}
}
