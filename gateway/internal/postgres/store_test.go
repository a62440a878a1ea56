package postgres_test

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/gateway/internal/keyring"
	store "github.com/kubebyon/kubebyon/gateway/internal/postgres"
	"github.com/kubebyon/kubebyon/gateway/internal/postgres/migrations"
	"github.com/kubebyon/kubebyon/gateway/internal/session"
	"github.com/kubebyon/kubebyon/gateway/internal/settings"
	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/postgres"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

const password = "correct horse battery"

func open(t *testing.T) (*store.Store, *pgxpool.Pool) {
	t.Helper()
	pool, err := postgres.Open(t.Context(), pgtest.New(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := postgres.Migrate(t.Context(), pool, "gateway", migrations.FS); err != nil {
		t.Fatal(err)
	}
	return store.NewStore(pool), pool
}

func service(t *testing.T, s *store.Store, now func() time.Time) *account.Service {
	t.Helper()
	hasher, err := account.NewHasher(4, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return account.NewService(s, hasher, now)
}

func count(t *testing.T, pool *pgxpool.Pool, query string) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestReplicasMakeOneAdmin(t *testing.T) {
	s, pool := open(t)
	var made atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			ok, err := service(t, s, time.Now).EnsureAdmin(t.Context(), "Admin@kubebyon.local", password)
			if err != nil {
				t.Error(err)
			}
			if ok {
				made.Add(1)
			}
		})
	}
	wg.Wait()
	if n := count(t, pool, `select count(*) from users where role = 'admin' and email = 'admin@kubebyon.local'`); made.Load() != 1 || n != 1 {
		t.Fatalf("%d replicas made it, %d accounts", made.Load(), n)
	}
}

func TestSetupLink(t *testing.T) {
	s, pool := open(t)
	now := time.Now()
	svc := service(t, s, func() time.Time { return now })
	old, err := svc.NewSetupToken(t.Context())
	if err != nil || old == "" {
		t.Fatal(old, err)
	}
	now = now.Add(account.SetupLinkLife + time.Second)
	if _, err := svc.Setup(t.Context(), old, "a@example.com", password); fault.From(err).Code != "setup_link_invalid" {
		t.Fatalf("an expired link: %v", err)
	}
	token, err := svc.NewSetupToken(t.Context())
	if err != nil || token == "" {
		t.Fatal(token, err)
	}
	for _, c := range []struct{ token, email, password, code string }{
		{"", "a@example.com", password, "setup_link_invalid"},
		{"guess", "a@example.com", password, "setup_link_invalid"},
		{token + "x", "a@example.com", password, "setup_link_invalid"},
		{token, "nobody", password, "email_invalid"},
		{token, "a@example.com", "short", "password_too_short"},
	} {
		if _, err := svc.Setup(t.Context(), c.token, c.email, c.password); fault.From(err).Code != c.code {
			t.Errorf("%+v: %v", c, err)
		}
	}

	var won atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			switch _, err := svc.Setup(t.Context(), token, "a@example.com", password); {
			case err == nil:
				won.Add(1)
			case fault.From(err).Code != "setup_link_invalid":
				t.Errorf("a loser of the race: %v", err)
			}
		})
	}
	wg.Wait()
	if n := count(t, pool, `select count(*) from users`); won.Load() != 1 || n != 1 {
		t.Fatalf("%d used one link, %d accounts", won.Load(), n)
	}
	if n := count(t, pool, `select count(*) from setup_links`); n != 0 {
		t.Errorf("%d links left", n)
	}
	if again, err := svc.NewSetupToken(t.Context()); err != nil || again != "" {
		t.Errorf("a link beside an account: %q, %v", again, err)
	}
	if made, err := svc.EnsureAdmin(t.Context(), "b@example.com", password); err != nil || made {
		t.Errorf("a second administrator: %v, %v", made, err)
	}
	if a, err := svc.Authenticate(t.Context(), " A@Example.com", password); err != nil || a.Role != contract.RoleAdmin {
		t.Errorf("log in: %+v, %v", a, err)
	}
}

func TestAuthenticateTellsNothing(t *testing.T) {
	s, _ := open(t)
	svc := service(t, s, time.Now)
	if _, err := svc.EnsureAdmin(t.Context(), "a@example.com", password); err != nil {
		t.Fatal(err)
	}
	took := func(email, pass string) time.Duration {
		start := time.Now()
		_, err := svc.Authenticate(t.Context(), email, pass)
		if f := fault.From(err); err == nil || f.Kind != fault.Unauthenticated || f.Error() != "unauthenticated (wrong_credentials): the e-mail address or the password is wrong" {
			t.Fatalf("%s: %v", email, err)
		}
		return time.Since(start)
	}
	// The fastest of several rounds: other work on the machine makes some slower, nothing makes one faster.
	known, unknown, malformed, long := time.Hour, time.Hour, time.Hour, time.Hour
	alike := func() bool {
		return unknown > known*2/3 && known > unknown*2/3 && malformed > known*2/3 && long > known*2/3
	}
	for round := 0; round < 3 || (round < 40 && !alike()); round++ {
		known = min(known, took("a@example.com", "wrong password"))
		unknown = min(unknown, took("b@example.com", "wrong password"))
		malformed = min(malformed, took("\x00", "wrong password"))
		long = min(long, took("a@example.com", string(make([]byte, 60000))))
	}
	if !alike() {
		t.Errorf("known %v, unknown %v, malformed %v, over-long %v", known, unknown, malformed, long)
	}
}

func TestSessions(t *testing.T) {
	s, pool := open(t)
	accounts := service(t, s, time.Now)
	if _, err := accounts.EnsureAdmin(t.Context(), "a@example.com", password); err != nil {
		t.Fatal(err)
	}
	a, err := accounts.Authenticate(t.Context(), "a@example.com", password)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now().UTC().Truncate(time.Second)
	now := start
	svc := session.NewService(s, func() time.Time { return now })
	alive := func(token string) bool {
		t.Helper()
		found, err := svc.Find(t.Context(), token)
		if err != nil && !fault.Is(err, fault.Unauthenticated) {
			t.Fatal(err)
		}
		if err == nil && found.Account != a {
			t.Fatalf("someone else's: %+v", found)
		}
		return err == nil
	}
	token, _, err := svc.Open(t.Context(), a, session.Client{})
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := svc.Open(t.Context(), a, session.Client{})
	if err != nil || other == token {
		t.Fatalf("the same token twice, or %v", err)
	}
	if !alive(token) || alive("") || alive("short") || alive(token[:42]+"-") {
		t.Fatal("a session is found by its token alone")
	}
	hash := sha256.Sum256([]byte(token))
	seen := func() (at time.Time) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), `select last_seen_at from sessions where token_hash = $1`, hash[:]).Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at.UTC()
	}
	now = start.Add(59 * time.Second)
	if alive(token); !seen().Equal(start) {
		t.Error("a use within a minute was written")
	}
	now = start.Add(61 * time.Second)
	if alive(token); !seen().Equal(now) {
		t.Error("a use after a minute was not written")
	}
	now = now.Add(session.Idle - time.Second)
	if !alive(token) || alive(other) {
		t.Error("idle expiry is not by last use")
	}
	for now.Before(start.Add(session.Absolute - time.Hour)) {
		if now = now.Add(time.Hour); !alive(token) {
			t.Fatalf("ended early, at %v", now.Sub(start))
		}
	}
	now = start.Add(session.Absolute)
	if alive(token) {
		t.Error("no absolute end")
	}
	third, _, err := svc.Open(t.Context(), a, session.Client{})
	if err != nil {
		t.Fatal(err)
	}
	if n := count(t, pool, `select count(*) from sessions`); n != 1 {
		t.Errorf("%d sessions kept, of which one lives", n)
	}
	if err := svc.Close(t.Context(), third); err != nil || alive(third) {
		t.Errorf("lives after its end (%v)", err)
	}
}

func TestSettings(t *testing.T) {
	s, _ := open(t)
	here, there := settings.NewService(s, keyring.Keyring{}), settings.NewService(s, keyring.Keyring{})
	join, bad := "https://join.example.com/", "nonsense"
	if _, _, err := here.Change(t.Context(), settings.Change{JoinBaseURL: &join, PublicBaseURL: &bad}, "usr_a"); !fault.Is(err, fault.Invalid) {
		t.Fatal(err)
	}
	if got, err := there.Read(t.Context()); err != nil || got != (settings.Settings{RegistrationMode: settings.Closed}) {
		t.Fatalf("half was stored: %+v, %v", got, err)
	}
	for _, c := range []settings.Change{{JoinBaseURL: &join}, {}} {
		if _, _, err := here.Change(t.Context(), c, "usr_a"); err != nil {
			t.Fatal(err)
		}
		got, err := there.Read(t.Context())
		if diff := cmp.Diff(settings.Settings{JoinBaseURL: "https://join.example.com", RegistrationMode: settings.Closed}, got); err != nil || diff != "" {
			t.Fatal(err, diff)
		}
	}
}

func TestAwayIsUnavailable(t *testing.T) {
	server := pgtest.Private(t)
	pool, err := postgres.Open(t.Context(), server.DSN(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := postgres.Migrate(t.Context(), pool, "gateway", migrations.FS); err != nil {
		t.Fatal(err)
	}
	s := store.NewStore(pool)
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `checkpoint`); err != nil { // the test server commits asynchronously
		t.Fatal(err)
	}
	server.Stop(t)
	for range 3 {
		if _, err := s.AnyAccount(t.Context()); !fault.Is(err, fault.Unavailable) {
			t.Fatalf("stopped: %v", err)
		}
	}
	server.Start(t)
	if _, err := s.AnyAccount(t.Context()); err != nil {
		t.Fatalf("back: %v", err)
	}
	// One that holds its locks: bounded, not for ever.
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `lock table users`); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, err := s.AnyAccount(t.Context()); !fault.Is(err, fault.Unavailable) || time.Since(start) > 6*time.Second {
		t.Fatalf("locked: %v after %v", err, time.Since(start))
	}
}
