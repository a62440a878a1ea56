package rpc

import (
	"reflect"
	"strings"
	"testing"

	"github.com/kubebyon/kubebyon/pkg/contract"
)

// The quick way must accept nothing that the strict one refuses, and read the same from what both accept.
func TestCanonicalPrincipal(t *testing.T) {
	for _, p := range []contract.Principal{{UserID: "usr_1", Role: contract.RoleAdmin}, {UserID: "a-B_9", Role: contract.RoleUser}} {
		s, err := encodePrincipal(p)
		if err != nil {
			t.Fatal(err)
		}
		var quick contract.Principal
		if !canonical(s, &quick) || !reflect.DeepEqual(quick, p) {
			t.Errorf("%s was read as %+v", s, quick)
		}
	}
	for _, s := range []string{
		``, `{}`, `{"user_id":"","role":"admin"}`, `{"user_id":"a","role":"root"}`, `{"user_id":"a","role":"admin"} `,
		`{"user_id":"a","role":"admin","role":"user"}`, `{"user_id":"a\u0041","role":"admin"}`, `{"user_id":"a","role":"admin"}{}`,
	} {
		var p contract.Principal
		if canonical(s, &p) || !reflect.DeepEqual(p, contract.Principal{}) {
			t.Errorf("%s was read as %+v", s, p)
		}
	}
}

// What an API token narrows survives the way, and nothing else gets in as one.
func TestNarrowedPrincipal(t *testing.T) {
	full := contract.Principal{UserID: "usr_" + strings.Repeat("x", 60), Role: contract.RoleAdmin, ReadOnly: true}
	for range contract.MaxPrincipalClusters {
		full.Clusters = append(full.Clusters, "cl_"+strings.Repeat("a", 20))
	}
	for _, p := range []contract.Principal{full, {UserID: "u", Role: contract.RoleUser, ReadOnly: true}, {UserID: "u", Role: contract.RoleUser, Clusters: full.Clusters[:1]}} {
		s, err := encodePrincipal(p)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := decodePrincipal(s); err != nil || !reflect.DeepEqual(again, p) {
			t.Errorf("%s became %+v, %v", s, again, err)
		}
	}
	for _, clusters := range [][]string{{""}, {"*"}, {"cl_x"}, {"cl_aaaaaaaaaaaaaaaaaaaa\r\nkb-x: y"}, append(full.Clusters, full.Clusters[0])} {
		if s, err := encodePrincipal(contract.Principal{UserID: "u", Role: contract.RoleUser, Clusters: clusters}); err == nil {
			t.Errorf("%v became %s", clusters, s)
		}
	}
}
