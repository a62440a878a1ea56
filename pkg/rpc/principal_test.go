package rpc

import (
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
		if !canonical(s, &quick) || quick != p {
			t.Errorf("%s was read as %+v", s, quick)
		}
	}
	for _, s := range []string{
		``, `{}`, `{"user_id":"","role":"admin"}`, `{"user_id":"a","role":"root"}`, `{"user_id":"a","role":"admin"} `,
		`{"user_id":"a","role":"admin","role":"user"}`, `{"user_id":"a\u0041","role":"admin"}`, `{"user_id":"a","role":"admin"}{}`,
	} {
		var p contract.Principal
		if canonical(s, &p) || p != (contract.Principal{}) {
			t.Errorf("%s was read as %+v", s, p)
		}
	}
}
