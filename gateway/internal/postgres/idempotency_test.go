package postgres_test

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/kubebyon/kubebyon/gateway/internal/idempotency"
	store "github.com/kubebyon/kubebyon/gateway/internal/postgres"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

const lease, life = time.Minute, time.Hour

func openKeys(t *testing.T) (keys *store.Keys, pool *pgxpool.Pool, ahead *atomic.Int64) {
	t.Helper()
	s, pool := open(t)
	for _, id := range []string{"usr_a", "usr_b"} {
		if _, err := pool.Exec(t.Context(), `insert into users (id, email, password_hash, role) values ($1, $1, '', 'user')`, id); err != nil {
			t.Fatal(err)
		}
	}
	ahead = &atomic.Int64{}
	start := time.Now().Truncate(time.Second)
	return s.Keys(func() time.Time { return start.Add(time.Duration(ahead.Load())) }), pool, ahead
}

func key(name string) []byte { return append(bytes.Repeat([]byte{0}, 32-len(name)), name...) }

func attemptOf(holder string) idempotency.Record {
	return idempotency.Record{Holder: holder, Credential: "ses_" + holder, Fingerprint: key("print of " + holder)}
}

func hold(t *testing.T, k *store.Keys, userID, name, holder string) (bool, idempotency.Record) {
	t.Helper()
	held, found, err := k.HoldKey(t.Context(), userID, key(name), attemptOf(holder), lease, 100)
	if err != nil {
		t.Fatal(err)
	}
	return held, found
}

func keep(t *testing.T, k *store.Keys, name, holder string, answer []byte) bool {
	t.Helper()
	kept, err := k.KeepAnswer(t.Context(), "usr_a", key(name), holder, answer, life)
	if err != nil {
		t.Fatal(err)
	}
	return kept
}

func TestOneOfManyHoldsAKey(t *testing.T) {
	k, pool, _ := openKeys(t)
	s := store.NewStore(pool).Keys(nil) // a replica that has the database's clock
	for round := range 5 {
		var held atomic.Int32
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				holder := fmt.Sprint(i)
				ok, found, err := []*store.Keys{k, s}[i%2].HoldKey(t.Context(), "usr_a", key(fmt.Sprint(round)), attemptOf(holder), lease, 100)
				if ok {
					held.Add(1)
				} else if err != nil || found.Holder == "" || found.Holder == holder || found.Done {
					t.Errorf("%+v %v", found, err)
				}
			})
		}
		wg.Wait()
		if held.Load() != 1 {
			t.Errorf("%d hold it", held.Load())
		}
	}
}

func TestAKeyIsKeptAndEnds(t *testing.T) {
	k, _, ahead := openKeys(t)
	if ok, _ := hold(t, k, "usr_a", "k", "first"); !ok {
		t.Fatal("a new key is taken")
	}
	if ok, _ := hold(t, k, "usr_b", "k", "other"); !ok {
		t.Error("another account's key is in the way")
	}
	if keep(t, k, "k", "second", []byte("x")) {
		t.Error("another one's answer is kept")
	}
	if !keep(t, k, "k", "first", []byte("answer")) || keep(t, k, "k", "first", []byte("other")) {
		t.Error("an answer is kept once")
	}
	if err := k.FreeKey(t.Context(), "usr_a", key("k"), "first"); err != nil {
		t.Fatal(err)
	}
	ahead.Store(int64(life) - 1)
	want := attemptOf("first")
	want.Done, want.Answer = true, []byte("answer")
	ok, found := hold(t, k, "usr_a", "k", "second")
	if diff := cmp.Diff(want, found); ok || diff != "" {
		t.Errorf("%v %s", ok, diff)
	}
	ahead.Store(int64(life))
	if ok, _ := hold(t, k, "usr_a", "k", "second"); !ok {
		t.Error("an answer is there after its time")
	}
	if ok, found := hold(t, k, "usr_a", "k", "third"); ok || found.Holder != "second" || found.Done || found.Answer != nil {
		t.Errorf("%v %+v", ok, found)
	}
}

// Whoever has let its lease end has no say any more once another one holds the key, and has until then.
func TestALeaseEnds(t *testing.T) {
	k, pool, ahead := openKeys(t)
	hold(t, k, "usr_a", "k", "first")
	hold(t, k, "usr_a", "late", "first")
	ahead.Store(int64(lease) - 1)
	if ok, _ := hold(t, k, "usr_a", "k", "second"); ok {
		t.Fatal("a key is taken from its holder")
	}
	ahead.Store(int64(lease))
	if !keep(t, k, "late", "first", []byte("answer")) {
		t.Error("an answer that nobody has overtaken is not kept")
	}
	if ok, _ := hold(t, k, "usr_a", "k", "second"); !ok {
		t.Fatal("a dead lease holds the key")
	}
	if keep(t, k, "k", "first", []byte("answer")) {
		t.Error("the first one's answer stands for the second one's")
	}
	if err := k.FreeKey(t.Context(), "usr_a", key("k"), "first"); err != nil {
		t.Fatal(err)
	}
	if ok, found := hold(t, k, "usr_a", "k", "third"); ok || found.Holder != "second" {
		t.Errorf("the first one has freed the second one's key: %v %+v", ok, found)
	}
	if err := k.FreeKey(t.Context(), "usr_a", key("k"), "second"); err != nil {
		t.Fatal(err)
	}
	if n := count(t, pool, `select count(*) from idempotency_keys where key_hash = '\x`+fmt.Sprintf("%x", key("k"))+`'`); n != 0 {
		t.Error("a freed key is stored")
	}
}

func TestDeadKeysAreSwept(t *testing.T) {
	k, pool, ahead := openKeys(t)
	for i := range 90 {
		hold(t, k, "usr_a", fmt.Sprint(i), "x")
	}
	hold(t, k, "usr_b", "kept", "x")
	ahead.Store(int64(lease) - 1)
	hold(t, k, "usr_b", "young", "x")
	ahead.Store(int64(lease))
	if ok, _ := hold(t, k, "usr_a", "0", "again"); !ok { // which is dead itself
		t.Error("it is not held")
	}
	if n := count(t, pool, `select count(*) from idempotency_keys`); n != 2 {
		t.Errorf("%d rows", n)
	}
}

func TestKeysAreBoundedPerAccount(t *testing.T) {
	k, _, ahead := openKeys(t)
	for i := range 100 {
		hold(t, k, "usr_a", fmt.Sprint(i), "x")
	}
	_, _, err := k.HoldKey(t.Context(), "usr_a", key("more"), attemptOf("x"), lease, 100)
	if f := fault.From(err); f == nil || f.Code != "idempotency_keys_full" || f.Kind != fault.RateLimited {
		t.Error(err)
	}
	if ok, found := hold(t, k, "usr_a", "7", "y"); ok || found.Holder != "x" {
		t.Errorf("one that is there is not found any more: %v %+v", ok, found)
	}
	if ok, _ := hold(t, k, "usr_b", "more", "x"); !ok {
		t.Error("another account is full too")
	}
	ahead.Store(int64(lease))
	if ok, _ := hold(t, k, "usr_a", "more", "x"); !ok {
		t.Error("dead ones count")
	}
}

func TestKeysGoWithTheirAccount(t *testing.T) {
	k, pool, _ := openKeys(t)
	hold(t, k, "usr_a", "k", "x")
	if _, err := pool.Exec(t.Context(), `delete from users where id = 'usr_a'`); err != nil {
		t.Fatal(err)
	}
	if n := count(t, pool, `select count(*) from idempotency_keys`); n != 0 {
		t.Errorf("%d rows", n)
	}
	_, _, err := k.HoldKey(t.Context(), "usr_a", key("l"), attemptOf("x"), lease, 100)
	if f := fault.From(err); f == nil || f.Kind != fault.Unauthenticated {
		t.Error(err)
	}
}
