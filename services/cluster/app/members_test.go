package app

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

// startService gives a running one with a connection to it and to its database.
func startService(t *testing.T) (*nats.Conn, *pgxpool.Pool) {
	t.Helper()
	url, dsn := natstest.New(t), pgtest.New(t)
	run(t, map[string]string{"KUBEBYON_DATABASE_DSN": dsn, "KUBEBYON_NATS_URL": url, "KUBEBYON_PROVISION_TIMEOUT": "2h"})
	conn := dial(t, url)
	eventually(t, 20*time.Second, "the service", func() bool { return answers(conn) })
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return conn, pool
}

func newCluster(t *testing.T, conn *nats.Conn, p contract.Principal, name string) clusterv1.Cluster {
	t.Helper()
	c, err := ask(t, conn, p, clusterv1.Create, clusterv1.CreateRequest{Name: name, ControlPlaneHost: "k8s.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func setMember(t *testing.T, conn *nats.Conn, p contract.Principal, id, user string, access clusterv1.Access) error {
	t.Helper()
	return second(ask(t, conn, p, clusterv1.SetMember, clusterv1.SetMemberRequest{ID: id, UserID: user, Access: access}))
}

func removeMember(t *testing.T, conn *nats.Conn, p contract.Principal, id, user string) error {
	t.Helper()
	return second(ask(t, conn, p, clusterv1.RemoveMember, clusterv1.RemoveMemberRequest{ID: id, UserID: user}))
}

func protect(t *testing.T, conn *nats.Conn, p contract.Principal, id string, yes bool) (clusterv1.Access, error) {
	t.Helper()
	c, err := ask(t, conn, p, clusterv1.Update, clusterv1.UpdateRequest{ID: id, DeletionProtection: &yes})
	if err == nil && c.DeletionProtection != yes {
		t.Errorf("protected %v, asked for %v", c.DeletionProtection, yes)
	}
	return c.Access, err
}

func codeOf(err error) string {
	if err == nil {
		return ""
	}
	return fault.From(err).Code
}

// Every method by every role, each on clusters of its own.
func TestEveryMethodByEveryRole(t *testing.T) {
	conn, _ := startService(t)
	const needViewer, needEditor, needOwner = 1, 2, 3
	narrowed := func(p contract.Principal, only ...string) contract.Principal { p.Clusters = only; return p }
	readOnly := func(p contract.Principal) contract.Principal { p.ReadOnly = true; return p }
	user := func(id string) contract.Principal { return contract.Principal{UserID: id, Role: contract.RoleUser} }
	const elsewhere = "cl_zzzzzzzzzzzzzzzzzzzz"

	roles := []struct {
		name   string
		p      func(id string) contract.Principal
		has    int
		sees   clusterv1.Access
		create string // the code of a refusal
	}{
		{"stranger", func(string) contract.Principal { return user("usr_stranger") }, 0, "", ""},
		{"viewer", func(string) contract.Principal { return user("usr_viewer") }, 1, "viewer", ""},
		{"editor", func(string) contract.Principal { return user("usr_editor") }, 2, "editor", ""},
		{"owner among the members", func(string) contract.Principal { return user("usr_owner") }, 3, "owner", ""},
		{"creator", func(string) contract.Principal { return alice }, 3, "owner", ""},
		{"administrator", func(string) contract.Principal { return admin }, 3, "owner", ""},
		{"administrator narrowed to it", func(id string) contract.Principal { return narrowed(admin, elsewhere, id) }, 3, "owner", "token_narrowed"},
		{"administrator narrowed to another", func(string) contract.Principal { return narrowed(admin, elsewhere) }, 0, "", "token_narrowed"},
		{"owner who may only read", func(string) contract.Principal { return readOnly(user("usr_owner")) }, 1, "viewer", "read_only"},
		{"creator who may only read", func(string) contract.Principal { return readOnly(alice) }, 1, "viewer", "read_only"},
		{"administrator who may only read", func(string) contract.Principal { return readOnly(admin) }, 1, "viewer", "read_only"},
		{"owner narrowed to it", func(id string) contract.Principal { return narrowed(user("usr_owner"), id) }, 3, "owner", "token_narrowed"},
		{"owner narrowed to another", func(string) contract.Principal { return narrowed(user("usr_owner"), elsewhere) }, 0, "", "token_narrowed"},
		{"creator narrowed to another", func(string) contract.Principal { return narrowed(alice, elsewhere) }, 0, "", "token_narrowed"},
		{"stranger narrowed to it", func(id string) contract.Principal { return narrowed(user("usr_stranger"), id) }, 0, "", "token_narrowed"},
	}
	name, host, mode := "", "other.example.com", clusterv1.NodePort
	methods := []struct {
		name string
		need int
		code string // what whoever may use it is told
		do   func(p contract.Principal, id string) (clusterv1.Access, error)
	}{
		{"get", needViewer, "", func(p contract.Principal, id string) (clusterv1.Access, error) {
			c, err := ask(t, conn, p, clusterv1.Get, clusterv1.GetRequest{ID: id})
			return c.Access, err
		}},
		{"get for a viewer", needViewer, "", func(p contract.Principal, id string) (clusterv1.Access, error) {
			c, err := ask(t, conn, p, clusterv1.Get, clusterv1.GetRequest{ID: id, Need: clusterv1.Viewer})
			return c.Access, err
		}},
		{"get for an editor", needEditor, "", func(p contract.Principal, id string) (clusterv1.Access, error) {
			c, err := ask(t, conn, p, clusterv1.Get, clusterv1.GetRequest{ID: id, Need: clusterv1.Editor})
			return c.Access, err
		}},
		{"get for an owner", needOwner, "", func(p contract.Principal, id string) (clusterv1.Access, error) {
			c, err := ask(t, conn, p, clusterv1.Get, clusterv1.GetRequest{ID: id, Need: clusterv1.Owner})
			return c.Access, err
		}},
		{"events", needViewer, "", func(p contract.Principal, id string) (clusterv1.Access, error) {
			return "", second(ask(t, conn, p, clusterv1.Events, clusterv1.EventsRequest{ID: id}))
		}},
		{"members", needViewer, "", func(p contract.Principal, id string) (clusterv1.Access, error) {
			return "", second(ask(t, conn, p, clusterv1.Members, clusterv1.MembersRequest{ID: id}))
		}},
		{"rename", needEditor, "", func(p contract.Principal, id string) (clusterv1.Access, error) {
			c, err := ask(t, conn, p, clusterv1.Update, clusterv1.UpdateRequest{ID: id, Name: &name})
			return c.Access, err
		}},
		{"change the host", needEditor, "", func(p contract.Principal, id string) (clusterv1.Access, error) {
			c, err := ask(t, conn, p, clusterv1.Update, clusterv1.UpdateRequest{ID: id, ControlPlaneHost: &host, PublicAccessMode: &mode})
			return c.Access, err
		}},
		{"try again", needEditor, "cluster_not_failed", func(p contract.Principal, id string) (clusterv1.Access, error) {
			return "", second(ask(t, conn, p, clusterv1.Retry, clusterv1.RetryRequest{ID: id}))
		}},
		{"protect", needEditor, "", func(p contract.Principal, id string) (clusterv1.Access, error) {
			return protect(t, conn, p, id, true)
		}},
		{"take the protection away", needOwner, "", func(p contract.Principal, id string) (clusterv1.Access, error) {
			if _, err := protect(t, conn, alice, id, true); err != nil {
				t.Fatal(err)
			}
			return protect(t, conn, p, id, false)
		}},
		{"delete what is protected", needOwner, "deletion_protected", func(p contract.Principal, id string) (clusterv1.Access, error) {
			if _, err := protect(t, conn, alice, id, true); err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = protect(t, conn, alice, id, false) }()
			return "", second(ask(t, conn, p, clusterv1.Delete, clusterv1.DeleteRequest{ID: id}))
		}},
		{"kubeconfig", needOwner, "cluster_not_ready", func(p contract.Principal, id string) (clusterv1.Access, error) {
			return "", second(ask(t, conn, p, clusterv1.Kubeconfig, clusterv1.KubeconfigRequest{ID: id}))
		}},
		{"list kubeconfigs", needViewer, "", func(p contract.Principal, id string) (clusterv1.Access, error) {
			return "", second(ask(t, conn, p, clusterv1.Kubeconfigs, clusterv1.KubeconfigsRequest{ID: id}))
		}},
		{"set a member", needOwner, "", func(p contract.Principal, id string) (clusterv1.Access, error) {
			return "", setMember(t, conn, p, id, "usr_new", clusterv1.Viewer)
		}},
		{"give itself more", needOwner, "", func(p contract.Principal, id string) (clusterv1.Access, error) {
			err := setMember(t, conn, p, id, p.UserID, clusterv1.Owner)
			if p.UserID == alice.UserID && codeOf(err) == "creator_stays_owner" {
				err = nil
			}
			return "", err
		}},
		{"remove a member", needOwner, "", func(p contract.Principal, id string) (clusterv1.Access, error) {
			return "", removeMember(t, conn, p, id, "usr_other")
		}},
		{"delete", needOwner, "", func(p contract.Principal, id string) (clusterv1.Access, error) {
			c, err := ask(t, conn, p, clusterv1.Delete, clusterv1.DeleteRequest{ID: id})
			return c.Access, err
		}},
	}
	for i, role := range roles {
		made := newCluster(t, conn, alice, fmt.Sprintf("r%d", i))
		if made.Access != clusterv1.Owner {
			t.Errorf("who creates a cluster is %q of it", made.Access)
		}
		for user, access := range map[string]clusterv1.Access{"usr_viewer": "viewer", "usr_editor": "editor", "usr_owner": "owner", "usr_other": "editor"} {
			if err := setMember(t, conn, alice, made.ID, user, access); err != nil {
				t.Fatal(err)
			}
		}
		p := role.p(made.ID)
		name = fmt.Sprintf("renamed %d", i)
		for _, m := range methods {
			access, err := m.do(p, made.ID)
			want, kind := m.code, fault.Precondition
			switch {
			case role.has == 0:
				want, kind = "cluster_not_found", fault.NotFound
			case role.has < m.need:
				want, kind = "cluster_access_insufficient", fault.Forbidden
			}
			if codeOf(err) != want || err != nil && !fault.Is(err, kind) {
				t.Errorf("%s by %s: %v, want %q", m.name, role.name, err, want)
			}
			if access != "" && access != role.sees || err == nil && access == "" && strings.HasPrefix(m.name, "get") {
				t.Errorf("%s by %s says that its access is %q", m.name, role.name, access)
			}
			if want == "cluster_access_insufficient" {
				needed := []clusterv1.Access{"", "viewer", "editor", "owner"}[m.need]
				if f := fault.From(err); !strings.Contains(f.Message, fmt.Sprintf("%q", needed)) || f.Action == "" {
					t.Errorf("%s by %s does not say what is needed: %v, %q", m.name, role.name, err, f.Action)
				}
			}
		}
		list, err := ask(t, conn, p, clusterv1.List, clusterv1.ListRequest{})
		at := slices.IndexFunc(list.Clusters, func(c clusterv1.Cluster) bool { return c.ID == made.ID })
		if err != nil || (at >= 0) != (role.has > 0) || at >= 0 && list.Clusters[at].Access != role.sees {
			t.Errorf("the list of %s: %+v, %v", role.name, list.Clusters, err)
		}
		if len(p.Clusters) > 0 && len(list.Clusters) > 1 {
			t.Errorf("the list of %s holds %d clusters", role.name, len(list.Clusters))
		}
		_, err = ask(t, conn, p, clusterv1.Create, clusterv1.CreateRequest{Name: fmt.Sprintf("by %d", i), ControlPlaneHost: "k8s.example.com"})
		if codeOf(err) != role.create || err != nil && !fault.Is(err, fault.Forbidden) {
			t.Errorf("create by %s: %v, want %q", role.name, err, role.create)
		}
	}
	if _, err := ask(t, conn, admin, clusterv1.Get, clusterv1.GetRequest{ID: elsewhere, Need: "root"}); codeOf(err) != "access_unknown" {
		t.Errorf("an access that there is not: %v", err)
	}
}

func TestMembers(t *testing.T) {
	conn, pool := startService(t)
	c := newCluster(t, conn, alice, "demo")
	members := func(p contract.Principal) string {
		t.Helper()
		found, err := ask(t, conn, p, clusterv1.Members, clusterv1.MembersRequest{ID: c.ID})
		if err != nil {
			return codeOf(err)
		}
		out := ""
		for _, m := range found.Members {
			if m.AddedAt.IsZero() {
				t.Errorf("%+v has no time", m)
			}
			out += m.UserID + "=" + string(m.Access) + "/" + m.AddedBy + " "
		}
		return out
	}
	expect := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	expect("at first", members(alice), "usr_a=owner/ ")
	expect("not seen", members(bob), "cluster_not_found")

	got, err := ask(t, conn, alice, clusterv1.SetMember, clusterv1.SetMemberRequest{ID: c.ID, UserID: bob.UserID, Access: clusterv1.Viewer})
	if err != nil || got.UserID != bob.UserID || got.Access != clusterv1.Viewer || got.AddedBy != alice.UserID || got.AddedAt.IsZero() {
		t.Errorf("%+v, %v", got, err)
	}
	expect("seen by the member", members(bob), "usr_a=owner/ usr_b=viewer/usr_a ")
	expect("again", codeOf(setMember(t, conn, admin, c.ID, bob.UserID, clusterv1.Viewer)), "")
	expect("changed", codeOf(setMember(t, conn, admin, c.ID, bob.UserID, clusterv1.Owner)), "")
	expect("who added it stays", members(bob), "usr_a=owner/ usr_b=owner/usr_a ")

	for what, err := range map[string]struct {
		err  error
		code string
	}{
		"the creator changed by another owner": {setMember(t, conn, bob, c.ID, alice.UserID, clusterv1.Viewer), "creator_stays_owner"},
		"the creator changed by itself":        {setMember(t, conn, alice, c.ID, alice.UserID, clusterv1.Viewer), "creator_stays_owner"},
		"the creator removed":                  {removeMember(t, conn, bob, c.ID, alice.UserID), "creator_stays_owner"},
		"the creator leaves":                   {removeMember(t, conn, alice, c.ID, alice.UserID), "creator_stays_owner"},
		"no access":                            {setMember(t, conn, alice, c.ID, "usr_c", ""), "access_unknown"},
		"unknown access":                       {setMember(t, conn, alice, c.ID, "usr_c", "root"), "access_unknown"},
		"no user":                              {setMember(t, conn, alice, c.ID, "", clusterv1.Viewer), "user_id_invalid"},
		"an injection":                         {setMember(t, conn, alice, c.ID, "' OR 1=1 --\x00", clusterv1.Viewer), "user_id_invalid"},
		"an injection, to remove":              {removeMember(t, conn, alice, c.ID, "' OR 1=1 --\x00"), "user_id_invalid"},
		"no member":                            {removeMember(t, conn, alice, c.ID, "usr_c"), "member_not_found"},
		"no cluster":                           {setMember(t, conn, admin, "cl_none", "usr_c", clusterv1.Viewer), "cluster_not_found"},
		"no cluster, to remove from":           {removeMember(t, conn, admin, "cl_none", "usr_c"), "cluster_not_found"},
	} {
		expect(what, codeOf(err.err), err.code)
	}

	// A member leaves by itself, of whatever access; not with what may only read.
	expect("an editor now", codeOf(setMember(t, conn, alice, c.ID, bob.UserID, clusterv1.Viewer)), "")
	reader := bob
	reader.ReadOnly = true
	expect("leaving read-only", codeOf(removeMember(t, conn, reader, c.ID, bob.UserID)), "cluster_access_insufficient")
	expect("leaving", codeOf(removeMember(t, conn, bob, c.ID, bob.UserID)), "")
	expect("gone", members(bob), "cluster_not_found")
	expect("and again", codeOf(removeMember(t, conn, bob, c.ID, bob.UserID)), "cluster_not_found")
	expect("left", members(alice), "usr_a=owner/ ")

	events, err := ask(t, conn, alice, clusterv1.Events, clusterv1.EventsRequest{ID: c.ID})
	var told []string
	for _, e := range events.Events {
		if strings.HasPrefix(e.Code, "member_") {
			told = append(told, e.Code+": "+e.Message)
		}
	}
	want := []string{
		"member_added: usr_b was made viewer by usr_a", "member_changed: usr_b was made owner by usr_admin, and was viewer",
		"member_changed: usr_b was made viewer by usr_a, and was owner", "member_removed: usr_b was removed by usr_b",
	}
	if err != nil || !slices.Equal(told, want) {
		t.Errorf("the timeline is %q, want %q; %v", told, want, err)
	}

	// The bound.
	if _, err := pool.Exec(t.Context(), `INSERT INTO cluster_members (cluster_id, user_id, access, added_by, added_at)
		SELECT $1, 'usr_n' || i, 'viewer', 'usr_a', now() FROM generate_series(1, 199) i`, c.ID); err != nil {
		t.Fatal(err)
	}
	expect("the last", codeOf(setMember(t, conn, alice, c.ID, "usr_last", clusterv1.Viewer)), "")
	expect("one too many", codeOf(setMember(t, conn, alice, c.ID, "usr_more", clusterv1.Viewer)), "too_many_members")
	expect("a change at the bound", codeOf(setMember(t, conn, alice, c.ID, "usr_last", clusterv1.Editor)), "")

	// A cluster that goes takes no new members, and its entries with it.
	if _, err := ask(t, conn, alice, clusterv1.Delete, clusterv1.DeleteRequest{ID: c.ID}); err != nil {
		t.Fatal(err)
	}
	expect("deleting", codeOf(setMember(t, conn, alice, c.ID, bob.UserID, clusterv1.Viewer)), "cluster_deleting")
	if _, err := pool.Exec(t.Context(), `DELETE FROM clusters WHERE id = $1`, c.ID); err != nil {
		t.Fatal(err)
	}
	var left int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM cluster_members`).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d entries of no cluster, %v", left, err)
	}
}

// Whoever waits for a cluster's lock is judged by what holds once it has it, not by what held when it began to wait.
func TestAccessIsJudgedUnderTheLock(t *testing.T) {
	conn, pool := startService(t)
	owner := contract.Principal{UserID: "usr_owner", Role: contract.RoleUser}
	name := "changed"
	for what, do := range map[string]func(id string) error{
		"update": func(id string) error {
			return second(ask(t, conn, owner, clusterv1.Update, clusterv1.UpdateRequest{ID: id, Name: &name}))
		},
		"delete": func(id string) error {
			return second(ask(t, conn, owner, clusterv1.Delete, clusterv1.DeleteRequest{ID: id}))
		},
		"set":    func(id string) error { return setMember(t, conn, owner, id, "usr_x", clusterv1.Owner) },
		"remove": func(id string) error { return removeMember(t, conn, owner, id, "usr_y") },
	} {
		c := newCluster(t, conn, alice, what)
		for _, user := range []string{owner.UserID, "usr_y"} {
			if err := setMember(t, conn, alice, c.ID, user, clusterv1.Owner); err != nil {
				t.Fatal(err)
			}
		}
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `SELECT FROM clusters WHERE id = $1 FOR UPDATE`, c.ID); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- do(c.ID) }()
		eventually(t, 4*time.Second, what+" waiting for the lock", func() bool {
			var n int
			err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
				AND query LIKE '%FROM clusters WHERE id = $1 FOR UPDATE%'`).Scan(&n)
			return err == nil && n > 0
		})
		_, err = tx.Exec(t.Context(), `DELETE FROM cluster_members WHERE cluster_id = $1 AND user_id = $2`, c.ID, owner.UserID)
		if err = errors.Join(err, tx.Commit(t.Context())); err != nil {
			t.Fatal(err)
		}
		if err := <-done; codeOf(err) != "cluster_not_found" {
			t.Errorf("%s by an owner who was removed while it waited: %v", what, err)
		}
	}
}

// Any number of changes at once leave entries that each follow from one of the orders in which they may have come.
func TestMembersChangeAtOnce(t *testing.T) {
	conn, pool := startService(t)
	c := newCluster(t, conn, alice, "demo")
	if _, err := pool.Exec(t.Context(), `INSERT INTO cluster_members (cluster_id, user_id, access, added_by, added_at)
		SELECT $1, 'usr_n' || i, 'viewer', 'usr_a', now() FROM generate_series(1, 195) i`, c.ID); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	results := map[string]int{}
	count := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		results[codeOf(err)]++
	}
	for i := range 12 {
		all.Go(func() { count(setMember(t, conn, alice, c.ID, fmt.Sprintf("usr_%d", i), clusterv1.Editor)) })
	}
	all.Wait()
	if results[""] != 5 || results["too_many_members"] != 7 {
		t.Errorf("5 of 12 had room: %v", results)
	}

	// Two owners who remove each other: one is first, and the other has nothing left to do it with.
	for _, user := range []string{"usr_n1", "usr_n2"} {
		if err := setMember(t, conn, alice, c.ID, user, clusterv1.Owner); err != nil {
			t.Fatal(err)
		}
	}
	results = map[string]int{}
	for _, pair := range [][2]string{{"usr_n1", "usr_n2"}, {"usr_n2", "usr_n1"}} {
		all.Go(func() {
			count(removeMember(t, conn, contract.Principal{UserID: pair[0], Role: contract.RoleUser}, c.ID, pair[1]))
		})
	}
	all.Wait()
	if results[""] != 1 || results["cluster_not_found"] != 1 {
		t.Errorf("each removed the other: %v", results)
	}

	// Set, remove and delete at once: the cluster goes, and nothing fails that should not.
	results = map[string]int{}
	for i := range 4 {
		all.Go(func() { count(setMember(t, conn, alice, c.ID, fmt.Sprintf("usr_n%d", 10+i), clusterv1.Editor)) })
		all.Go(func() { count(removeMember(t, conn, alice, c.ID, fmt.Sprintf("usr_n%d", 10+i))) })
		all.Go(func() { count(second(ask(t, conn, alice, clusterv1.Delete, clusterv1.DeleteRequest{ID: c.ID}))) })
	}
	all.Wait()
	for code, n := range results {
		if !slices.Contains([]string{"", "cluster_deleting", "member_not_found"}, code) {
			t.Errorf("%d times %s", n, code)
		}
	}
}

// A member who is removed has nothing with its very next call, on whichever replica.
func TestRemovalCountsWithTheNextCall(t *testing.T) {
	url, dsn := natstest.New(t), pgtest.New(t)
	for range 2 {
		run(t, map[string]string{"KUBEBYON_DATABASE_DSN": dsn, "KUBEBYON_NATS_URL": url})
	}
	conn := dial(t, url)
	eventually(t, 20*time.Second, "the service", func() bool { return answers(conn) })
	c := newCluster(t, conn, alice, "demo")
	for range 10 {
		if err := setMember(t, conn, alice, c.ID, bob.UserID, clusterv1.Editor); err != nil {
			t.Fatal(err)
		}
		if got, err := ask(t, conn, bob, clusterv1.Get, clusterv1.GetRequest{ID: c.ID, Need: clusterv1.Editor}); err != nil || got.Access != clusterv1.Editor {
			t.Fatalf("%+v, %v", got, err)
		}
		if err := removeMember(t, conn, alice, c.ID, bob.UserID); err != nil {
			t.Fatal(err)
		}
		if err := second(ask(t, conn, bob, clusterv1.Get, clusterv1.GetRequest{ID: c.ID})); codeOf(err) != "cluster_not_found" {
			t.Fatalf("after the removal: %v", err)
		}
		if list, err := ask(t, conn, bob, clusterv1.List, clusterv1.ListRequest{}); err != nil || len(list.Clusters) != 0 {
			t.Fatalf("after the removal: %+v, %v", list, err)
		}
	}
}
