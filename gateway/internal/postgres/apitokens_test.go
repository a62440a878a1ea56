package postgres_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/gateway/internal/apitoken"
	"github.com/kubebyon/kubebyon/gateway/internal/session"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

const someone = "usr_aaaaaaaaaaaaaaaaaaaa"

func TestAPITokens(t *testing.T) {
	s, pool := open(t)
	if _, err := pool.Exec(t.Context(), `insert into users (id, email, password_hash, role) values ($1, 'a@example.com', '', 'user')`, someone); err != nil {
		t.Fatal(err)
	}
	start := time.Now().UTC().Truncate(time.Second)
	now := start
	svc := apitoken.NewService(s, func() time.Time { return now })
	ttl := int64(7200)
	wish := func(name string) apitoken.Wish {
		return apitoken.Wish{Name: name, Scopes: []string{"read"}, TTLSeconds: &ttl}
	}

	// One name in a race, and the bound in a race.
	var won, taken atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			switch _, _, err := svc.Make(t.Context(), someone, wish("one")); {
			case err == nil:
				won.Add(1)
			case fault.From(err).Code == "api_token_name_taken":
				taken.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || taken.Load() != 7 {
		t.Fatalf("%d made, %d refused", won.Load(), taken.Load())
	}
	for i := range apitoken.MaxPerAccount + 9 {
		wg.Go(func() {
			if _, _, err := svc.Make(t.Context(), someone, wish(fmt.Sprint("n", i))); err == nil {
				won.Add(1)
			} else if fault.From(err).Code != "api_token_limit" {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := count(t, pool, `select count(*) from api_tokens`); n != apitoken.MaxPerAccount || int(won.Load()) != n {
		t.Fatalf("%d kept, %d made", n, won.Load())
	}
	if err := svc.RevokeAllOf(t.Context(), someone); err != nil {
		t.Fatal(err)
	}
	if _, _, err := svc.Make(t.Context(), "usr_bbbbbbbbbbbbbbbbbbbb", wish("nobody's")); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}

	value, made, err := svc.Make(t.Context(), someone, wish("used"))
	if err != nil {
		t.Fatal(err)
	}
	used := func() (at time.Time) {
		t.Helper()
		all, err := svc.Of(t.Context(), someone)
		if err != nil || len(all) != 1 || all[0].ID != made.ID {
			t.Fatalf("%+v, %v", all, err)
		}
		if all[0].LastUsedAt == nil {
			return time.Time{}
		}
		return all[0].LastUsedAt.UTC()
	}
	find := func() error {
		found, owner, err := svc.Find(t.Context(), value)
		if err == nil && (found.ID != made.ID || owner.ID != someone) {
			t.Errorf("%+v of %+v", found, owner)
		}
		return err
	}
	if !used().IsZero() || find() != nil || !used().Equal(start) {
		t.Error("the first use is not written")
	}
	now = start.Add(59 * time.Second)
	if find() != nil || !used().Equal(start) {
		t.Error("a use within a minute was written")
	}
	now = start.Add(time.Minute)
	if find() != nil || !used().Equal(now) {
		t.Error("a use after a minute was not written")
	}
	now = made.ExpiresAt.Add(-time.Second)
	if err := find(); err != nil {
		t.Error(err)
	}
	now = made.ExpiresAt
	if err := find(); fault.From(err).Code != "token_invalid" {
		t.Errorf("after its end: %v", err)
	}
	used() // an expired one is still listed
}

// Dead sessions of everybody go, a bounded number with each log-in, and living ones stay.
func TestDeadSessionsArePruned(t *testing.T) {
	s, pool := open(t)
	if _, err := pool.Exec(t.Context(), `insert into users (id, email, password_hash, role) values ($1, 'a@example.com', '', 'user'), ('usr_b', 'b@example.com', '', 'user')`, someone); err != nil {
		t.Fatal(err)
	}
	// Rows as they were before sessions had ids: each gets one of its own.
	if _, err := pool.Exec(t.Context(), `insert into sessions (token_hash, user_id, created_at, last_seen_at, expires_at)
		select sha256(n::text::bytea), 'usr_b', now(),
			case when n <= 75 then now() - interval '25 hours' else now() end, case when n > 75 and n <= 150 then now() - interval '1 second' else now() + interval '1 day' end
		from generate_series(1, 153) as n`); err != nil {
		t.Fatal(err)
	}
	if n := count(t, pool, `select count(distinct id) from sessions where id ~ '^ses_[a-z0-9]{20}$'`); n != 153 {
		t.Fatalf("%d have an id", n)
	}
	svc := session.NewService(s, time.Now)
	for _, left := range []int{54, 5} {
		if _, _, err := svc.Open(t.Context(), account.Account{ID: someone}, session.Client{}); err != nil {
			t.Fatal(err)
		}
		if n := count(t, pool, `select count(*) from sessions`); n != left {
			t.Errorf("%d left, want %d", n, left)
		}
	}
	if all, err := svc.Of(t.Context(), "usr_b"); err != nil || len(all) != 3 {
		t.Errorf("%d, %v", len(all), err)
	}
	mine, err := svc.Of(t.Context(), someone)
	if err != nil || len(mine) != 2 {
		t.Fatalf("%+v, %v", mine, err)
	}
	if err := svc.CloseAllOf(t.Context(), someone, mine[1].ID); err != nil {
		t.Fatal(err)
	}
	if left, err := svc.Of(t.Context(), someone); err != nil || len(left) != 1 || left[0].ID != mine[1].ID {
		t.Errorf("%+v, %v", left, err)
	}
	if n := count(t, pool, `select count(*) from sessions where user_id = 'usr_b'`); n != 3 {
		t.Errorf("another account's went: %d", n)
	}
}
