package postgres_test

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubebyon/kubebyon/pkg/fault"
	pkgpostgres "github.com/kubebyon/kubebyon/pkg/postgres"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
	"github.com/kubebyon/kubebyon/services/token/internal/postgres"
	"github.com/kubebyon/kubebyon/services/token/internal/token"
)

var at = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func record(id, cluster, public string, made time.Time) token.Record {
	v, err := token.Parse(public + "." + "0123456789abcdef")
	if err != nil {
		panic(err)
	}
	return token.Record{ID: id, ClusterID: cluster, TokenID: public, Hash: v.Hash(), CreatedBy: "usr_x", CreatedAt: made, ExpiresAt: made.Add(time.Hour)}
}

// open also shows that replicas which start at once agree on the table.
func open(t *testing.T, dsn string) *postgres.Store {
	t.Helper()
	pool, err := pkgpostgres.Open(t.Context(), dsn, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := pkgpostgres.Migrate(t.Context(), pool, "token", postgres.Migrations()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	return postgres.New(pool)
}

func TestStore(t *testing.T) {
	store, ctx := open(t, pgtest.New(t)), t.Context()
	first, second := record("tok_1", "cl_a", "aaaaaa", at), record("tok_2", "cl_a", "bbbbbb", at.Add(time.Second))
	twin := record("tok_3", "cl_b", "aaaaaa", at)
	for _, r := range []token.Record{first, second, twin} {
		if err := store.Insert(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Insert(ctx, first); err == nil {
		t.Error("one id twice")
	}
	got, err := store.ByCluster(ctx, "cl_a")
	if diff := cmp.Diff([]token.Record{second, first}, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if got, err = store.ByTokenID(ctx, "aaaaaa"); err != nil || len(got) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err = store.ByTokenID(ctx, "zzzzzz"); err != nil || len(got) != 0 {
		t.Errorf("%+v, %v", got, err)
	}

	ended, err := store.Revoke(ctx, "cl_a", "tok_1", at.Add(time.Minute))
	if err != nil || ended.RevokedAt == nil || !ended.RevokedAt.Equal(at.Add(time.Minute)) {
		t.Fatalf("%+v, %v", ended, err)
	}
	if again, err := store.Revoke(ctx, "cl_a", "tok_1", at.Add(time.Hour)); err != nil || !again.RevokedAt.Equal(*ended.RevokedAt) {
		t.Errorf("the first revocation is not kept: %+v, %v", again, err)
	}
	for _, where := range [][2]string{{"cl_b", "tok_1"}, {"cl_a", "tok_9"}, {"cl_a", "' OR true --"}} {
		if _, err := store.Revoke(ctx, where[0], where[1], at); !fault.Is(err, fault.NotFound) {
			t.Errorf("%v: %v", where, err)
		}
	}

	for _, when := range []time.Time{at.Add(time.Minute), at.Add(time.Second)} {
		if err := store.Used(ctx, "tok_2", when); err != nil {
			t.Fatal(err)
		}
	}
	if got, err = store.ByCluster(ctx, "cl_a"); err != nil || got[0].LastUsedAt == nil || !got[0].LastUsedAt.Equal(at.Add(time.Minute)) {
		t.Errorf("%+v, %v", got, err)
	}

	for _, c := range []struct {
		cluster string
		n       int64
	}{{"cl_a", 2}, {"cl_a", 0}, {"' OR true --", 0}} {
		if n, err := store.Forget(ctx, c.cluster); err != nil || n != c.n {
			t.Errorf("%d of %s forgotten, %v", n, c.cluster, err)
		}
	}
	if got, err = store.ByTokenID(ctx, "aaaaaa"); err != nil || len(got) != 1 || got[0].ClusterID != "cl_b" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestStoreWhilePostgreSQLIsAway(t *testing.T) {
	server := pgtest.Private(t)
	store := open(t, server.DSN())
	server.Stop(t)
	_, err := store.ByCluster(t.Context(), "cl_a")
	f := fault.From(err)
	if err == nil || f.Kind != fault.Unavailable || f.Code != "database_unavailable" || strings.Contains(f.Message+f.Action, "/tmp") {
		t.Errorf("%v", err)
	}
	server.Start(t)
	if _, err := store.ByCluster(t.Context(), "cl_a"); err != nil {
		t.Errorf("after it came back: %v", err)
	}
}
