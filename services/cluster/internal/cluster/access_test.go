package cluster

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
)

const (
	thisID  = "cl_aaaaaaaaaaaaaaaaaaaa"
	otherID = "cl_bbbbbbbbbbbbbbbbbbbb"
)

// Every role, relation and narrowing there is, against what the rules say in words.
func TestAccess(t *testing.T) {
	c := clusterv1.Cluster{ID: thisID, OwnerID: "usr_creator"}
	n := 0
	for _, who := range []struct {
		name       string
		p          contract.Principal
		membership clusterv1.Access
		want       clusterv1.Access
	}{
		{"nobody", contract.Principal{}, "", ""},
		{"nobody, though a member says otherwise", contract.Principal{}, "owner", ""},
		{"nobody, with an administrator's role", contract.Principal{Role: "admin"}, "", ""},
		{"a stranger", contract.Principal{UserID: "usr_x", Role: "user"}, "", ""},
		{"a stranger of no role", contract.Principal{UserID: "usr_x"}, "", ""},
		{"a viewer", contract.Principal{UserID: "usr_x", Role: "user"}, "viewer", "viewer"},
		{"an editor", contract.Principal{UserID: "usr_x", Role: "user"}, "editor", "editor"},
		{"an owner among the members", contract.Principal{UserID: "usr_x", Role: "user"}, "owner", "owner"},
		{"a member of an access that there is not", contract.Principal{UserID: "usr_x", Role: "user"}, "root", ""},
		{"the creator", contract.Principal{UserID: "usr_creator", Role: "user"}, "", "owner"},
		{"the creator, whatever the members say", contract.Principal{UserID: "usr_creator", Role: "user"}, "viewer", "owner"},
		{"an administrator", contract.Principal{UserID: "usr_x", Role: "admin"}, "", "owner"},
		{"an administrator who is a viewer", contract.Principal{UserID: "usr_x", Role: "admin"}, "viewer", "owner"},
	} {
		for _, only := range []struct {
			clusters []string
			listed   bool
		}{{nil, true}, {[]string{}, true}, {[]string{thisID}, true}, {[]string{otherID, thisID}, true}, {[]string{otherID}, false}, {[]string{""}, false}} {
			for _, readOnly := range []bool{false, true} {
				p, want := who.p, who.want
				p.Clusters, p.ReadOnly = only.clusters, readOnly
				if readOnly && want != "" {
					want = "viewer"
				}
				if !only.listed {
					want = ""
				}
				n++
				if got := accessOf(p, c, who.membership); got != want {
					t.Errorf("%s, narrowed to %v, read-only %v: %q, want %q", who.name, only.clusters, readOnly, got, want)
				}
			}
		}
	}
	if n != 13*6*2 {
		t.Errorf("%d cases", n)
	}
}

// Whatever narrows a principal leaves it with what it had, or less; and more narrowing with less again.
func TestNarrowingNeverWidens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SampledFrom([]string{"", thisID, otherID, "cl_c", "*"})
		users := rapid.SampledFrom([]string{"", "usr_a", "usr_b"})
		c := clusterv1.Cluster{ID: ids.Draw(t, "id"), OwnerID: users.Draw(t, "creator")}
		p := contract.Principal{
			UserID: users.Draw(t, "user"), Role: rapid.SampledFrom([]contract.Role{"", "user", "admin", "root"}).Draw(t, "role"),
			ReadOnly: rapid.Bool().Draw(t, "read-only"), Clusters: rapid.SliceOfN(ids, 0, 10).Draw(t, "clusters"),
		}
		membership := rapid.SampledFrom([]clusterv1.Access{"", "viewer", "editor", "owner", "root"}).Draw(t, "membership")
		had := accessOf(p, c, membership)
		if rank(had) < 0 {
			t.Fatalf("%q is no access", had)
		}
		less := p
		less.ReadOnly = p.ReadOnly || rapid.Bool().Draw(t, "also read-only")
		if len(p.Clusters) == 0 {
			less.Clusters = rapid.SliceOfN(ids, 0, 10).Draw(t, "now clusters")
		} else if n := rapid.IntRange(1, len(p.Clusters)).Draw(t, "of them"); n > 0 {
			less.Clusters = p.Clusters[:n]
		}
		if has := accessOf(less, c, membership); rank(has) > rank(had) {
			t.Fatalf("%+v has %q, and narrowed to %+v %q", p, had, less, has)
		}
	})
}
