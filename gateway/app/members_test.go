package app_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
)

const members = cluster + "/members"

// rows runs sql in the gateway's database.
func (w *world) rows(sql string, args ...any) {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), w.dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close(w.t.Context()) }()
	if _, err := conn.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) addUser(id, email string) {
	w.t.Helper()
	w.rows(`insert into users (id, email, password_hash, role) select $1, $2, password_hash, 'user' from users where email = $3`, id, email, adminEmail)
}

func (w *world) idOf(email string) (id string) {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), w.dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close(w.t.Context()) }()
	if err := conn.QueryRow(w.t.Context(), `select id from users where email = $1`, email).Scan(&id); err != nil {
		w.t.Fatal(err)
	}
	return id
}

type shownMember struct {
	UserID  string `json:"user_id"`
	Email   string `json:"email"`
	Access  string `json:"access"`
	AddedBy string `json:"added_by"`
}

func (w *world) shownMembers() []shownMember {
	w.t.Helper()
	var body struct {
		Members []shownMember `json:"members"`
	}
	w.call("GET", members, clusterID, "").json(w.t, &body)
	return body.Members
}

func TestMembers(t *testing.T) {
	w := start(t)
	const danaID, dana = "usr_danadanadanadanadana", "dana@example.com"
	w.addUser(danaID, dana)

	a := w.call("PUT", members, clusterID, `{"email":" Dana@Example.com ","access":"editor"}`)
	a.expect(t, http.StatusOK, "")
	var set struct{ Member shownMember }
	a.json(t, &set)
	if set.Member != (shownMember{danaID, dana, "editor", "usr_x"}) {
		t.Errorf("%+v", set.Member)
	}
	shown := w.shownMembers()
	// The creator of the example is an account that there is not, as one that was deleted.
	if len(shown) != 2 || shown[0] != (shownMember{"usr_x", "", "owner", ""}) || shown[1] != (shownMember{danaID, dana, "editor", "usr_x"}) {
		t.Errorf("%+v", shown)
	}
	w.rows(`delete from users where id = $1`, danaID)
	if shown := w.shownMembers(); len(shown) != 2 || shown[1] != (shownMember{danaID, "", "editor", "usr_x"}) {
		t.Errorf("of a deleted account: %+v", shown)
	}
	if a := w.call("DELETE", members+"/{user_id}", clusterID+" "+danaID, ""); a.status != http.StatusNoContent || a.text != "" {
		t.Errorf("%d %q", a.status, a.text)
	}
	if shown := w.shownMembers(); len(shown) != 1 {
		t.Errorf("after the removal: %+v", shown)
	}
}

func TestMembersBadInput(t *testing.T) {
	w := start(t)
	w.addUser("usr_offoffoffoffoffoffof", "off@example.com")
	w.rows(`update users set disabled_at = now() where email = 'off@example.com'`)
	for _, c := range []struct {
		method, path, fill, body string
		status                   int
		code, field              string
	}{
		{"PUT", members, clusterID, `{"access":"viewer"}`, 400, "field_required", "email"},
		{"PUT", members, clusterID, `{"email":"a@example.com"}`, 400, "field_required", "access"},
		{"PUT", members, clusterID, `{"email":7,"access":"viewer"}`, 400, "wrong_type", "email"},
		{"PUT", members, clusterID, `{"email":"a@example.com","access":"viewer","user_id":"usr_x"}`, 400, "unknown_field", "user_id"},
		{"PUT", members, clusterID, `{"email":"no address","access":"viewer"}`, 400, "email_invalid", "email"},
		{"PUT", members, clusterID, `{"email":"` + adminEmail + `","access":"root"}`, 400, "access_unknown", "access"},
		{"PUT", members, clusterID, `{"email":"nobody@example.com","access":"viewer"}`, 404, "account_not_found", "email"},
		{"PUT", members, clusterID, `{"email":"off@example.com","access":"viewer"}`, 404, "account_not_found", "email"},
		{"PUT", members, "cl_x", `{"email":"a@example.com","access":"viewer"}`, 404, "cluster_not_found", ""},
		{"GET", members, "cl_x", "", 404, "cluster_not_found", ""},
		{"DELETE", members + "/{user_id}", "cl_x usr_danadanadanadanadana", "", 404, "cluster_not_found", ""},
		{"DELETE", members + "/{user_id}", clusterID + " usr_x", "", 404, "member_not_found", ""},
		{"DELETE", members + "/{user_id}", clusterID + " usr_DANADANADANADANADANA", "", 404, "member_not_found", ""},
		{"DELETE", members + "/{user_id}", clusterID + " %27%20OR%201=1", "", 404, "member_not_found", ""},
	} {
		var before, after int
		w.backend.set(func(b *backend) { before = len(b.principals) })
		a := w.call(c.method, c.path, c.fill, c.body)
		w.backend.set(func(b *backend) { after = len(b.principals) })
		if a.expect(t, c.status, c.code); a.problem.Field != c.field {
			t.Errorf("%s %s: the field is %q", c.method, c.body, a.problem.Field)
		}
		if c.method == "DELETE" && after != before {
			t.Errorf("%s reached the services", c.fill)
		}
	}
	w.backend.set(func(b *backend) {
		if len(b.members) != 0 {
			t.Errorf("%+v", b.members)
		}
	})
}

// Who is no owner of the cluster gets one answer, whether an address is known or not.
func TestMembersTellOwnersAloneWhetherAnAddressIsKnown(t *testing.T) {
	w := start(t)
	w.backend.set(func(b *backend) { b.access = clusterv1.Editor })
	var told []string
	for _, email := range []string{adminEmail, "nobody@example.com", "no address"} {
		a := w.call("PUT", members, clusterID, `{"email":"`+email+`","access":"viewer"}`)
		a.expect(t, http.StatusForbidden, "cluster_access_insufficient")
		told = append(told, strings.ReplaceAll(a.text, a.problem.TraceID, ""))
	}
	if told[0] != told[1] || told[1] != told[2] {
		t.Errorf("they differ:\n%s", strings.Join(told, "\n"))
	}
	w.backend.set(func(b *backend) {
		if len(b.needs) != 3 || b.needs[0].Need != clusterv1.Owner || len(b.members) != 0 {
			t.Errorf("%+v, %+v", b.needs, b.members)
		}
	})
}
