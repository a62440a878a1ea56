package postgres_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/gateway/internal/openid"
	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

func TestEnterByOpenID(t *testing.T) {
	s, pool := open(t)
	if _, err := service(t, s, time.Now).EnsureAdmin(t.Context(), "admin@example.com", password); err != nil {
		t.Fatal(err)
	}
	accounts := openid.NewAccounts(s, time.Now)
	person := func(subject, email string) openid.Person {
		return openid.Person{Issuer: "https://id.example.com", Subject: subject, Email: email}
	}
	var adminID string
	for _, c := range []struct {
		what   string
		person openid.Person
		create bool
		entry  openid.Entry
		code   string
	}{
		{"closed", person("a", "a@example.com"), false, openid.Absent, "registration_closed"},
		{"by the address", person("admin", "admin@example.com"), false, openid.Linked, ""},
		{"by the subject", person("admin", "another@example.com"), false, openid.Known, ""},
		{"the address given to another", person("heir", "admin@example.com"), true, openid.Taken, "openid_account_linked"},
		{"open", person("a", "a@example.com"), true, openid.Made, ""},
		{"and again, closed", person("a", "a@example.com"), false, openid.Known, ""},
		{"another provider, same address", openid.Person{Issuer: "https://other.example.com", Subject: "admin", Email: "a@example.com"}, false, openid.Linked, ""},
	} {
		a, entry, err := accounts.Enter(t.Context(), c.person, c.create)
		if entry != c.entry || (err == nil) != (c.code == "") || err != nil && fault.From(err).Code != c.code {
			t.Errorf("%s: %v, %v", c.what, entry, err)
		}
		if err == nil && c.person.Subject == "a" && (a.Role != contract.RoleUser || a.Email != "a@example.com") {
			t.Errorf("%s: %+v", c.what, a)
		}
		if c.entry == openid.Linked && adminID == "" {
			adminID = a.ID
		}
		if c.what == "by the subject" && (a.ID != adminID || a.Email != "admin@example.com") {
			t.Errorf("%s: %+v", c.what, a)
		}
	}
	if n := count(t, pool, `select count(*) from users where password_hash is null`); n != 1 {
		t.Errorf("%d accounts without a password", n)
	}
	if _, err := pool.Exec(t.Context(), `update users set disabled_at = now()`); err != nil {
		t.Fatal(err)
	}
	for _, p := range []openid.Person{person("admin", "admin@example.com"), person("new", "a@example.com")} {
		if _, entry, err := accounts.Enter(t.Context(), p, true); entry != openid.Disabled || fault.From(err).Code != "account_disabled" {
			t.Errorf("disabled, %+v: %v, %v", p, entry, err)
		}
	}
}

// Any number of log-ins at once make one account of one person, and one person of one address.
func TestEnterByOpenIDAtOnce(t *testing.T) {
	s, pool := open(t)
	accounts := openid.NewAccounts(s, time.Now)
	var wg sync.WaitGroup
	var mu sync.Mutex
	ids := map[string]map[string]bool{}
	for i := range 48 {
		// Eight persons who are each here three times, with two addresses; and each address with two subjects.
		p := openid.Person{Issuer: "https://id.example.com", Subject: fmt.Sprint("subject-", i%8), Email: fmt.Sprintf("p%d@example.com", (i/8+i)%8)}
		wg.Go(func() {
			a, entry, err := accounts.Enter(t.Context(), p, true)
			if err != nil && entry != openid.Taken {
				t.Errorf("%+v: %v", p, err)
				return
			}
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				if ids[p.Subject] == nil {
					ids[p.Subject] = map[string]bool{}
				}
				ids[p.Subject][a.ID] = true
			}
		})
	}
	wg.Wait()
	for subject, accounts := range ids {
		if len(accounts) != 1 {
			t.Errorf("%s has %d accounts", subject, len(accounts))
		}
	}
	if stray := count(t, pool, `select count(*) from users u where not exists (select from openid_identities i where i.user_id = u.id)`); stray != 0 || len(ids) == 0 {
		t.Errorf("%d accounts of nobody's, %d persons", stray, len(ids))
	}
}

// One person who comes in many times at once comes in every time, by the address of an account or into a new one.
func TestOnePersonAtOnce(t *testing.T) {
	s, pool := open(t)
	if _, err := service(t, s, time.Now).EnsureAdmin(t.Context(), "admin@example.com", password); err != nil {
		t.Fatal(err)
	}
	accounts := openid.NewAccounts(s, time.Now)
	for i := range 10 {
		p := openid.Person{Issuer: fmt.Sprint("https://id.example.com/", i), Subject: "subject", Email: "admin@example.com"}
		if i%2 == 1 {
			p.Email = fmt.Sprintf("new-%d@example.com", i)
		}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if a, entry, err := accounts.Enter(t.Context(), p, true); err != nil || a.Email != p.Email {
					t.Errorf("%+v: %+v, %v, %v", p, a, entry, err)
				}
			})
		}
		wg.Wait()
	}
	if n := count(t, pool, `select count(*) from users`); n != 6 {
		t.Errorf("%d accounts", n)
	}
}
