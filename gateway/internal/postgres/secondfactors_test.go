package postgres_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pquerna/otp/totp"

	"github.com/kubebyon/kubebyon/gateway/internal/keyring"
	store "github.com/kubebyon/kubebyon/gateway/internal/postgres"
	"github.com/kubebyon/kubebyon/gateway/internal/secondfactor"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

const holder = "usr_holderholderholderho"

// factor is an account's second factor, with the clock that it goes by.
type factor struct {
	*secondfactor.Service
	t      *testing.T
	now    time.Time
	secret string
	pool   *pgxpool.Pool
	store  *store.Store
	keys   keyring.Keyring
}

func (f *factor) code(off time.Duration) string {
	f.t.Helper()
	code, err := totp.GenerateCode(f.secret, f.now.Add(off))
	if err != nil {
		f.t.Fatal(err)
	}
	return code
}

func (f *factor) expect(code, want string) {
	f.t.Helper()
	got := ""
	if err := fault.From(f.Check(f.t.Context(), holder, code)); err != nil {
		got = err.Code
	}
	if got != want {
		f.t.Errorf("%q: %q, want %q", code, got, want)
	}
}

func begun(t *testing.T) *factor {
	t.Helper()
	s, pool := open(t)
	if _, err := pool.Exec(t.Context(), `insert into users (id, email, password_hash, role) values ($1, 'holder@example.com', '', 'user')`, holder); err != nil {
		t.Fatal(err)
	}
	keys, err := keyring.Parse(keyring.New())
	if err != nil {
		t.Fatal(err)
	}
	f := &factor{t: t, now: time.Date(2026, 12, 1, 12, 0, 10, 0, time.UTC), pool: pool, store: s, keys: keys}
	f.Service = secondfactor.NewService(s, keys, func() time.Time { return f.now })
	made, err := f.Begin(t.Context(), holder, "holder@example.com")
	if err != nil {
		t.Fatal(err)
	}
	f.secret = made.Secret
	return f
}

func enabled(t *testing.T) (*factor, []string) {
	t.Helper()
	f := begun(t)
	codes, err := f.Confirm(t.Context(), holder, f.code(0))
	if err != nil || len(codes) != 10 {
		t.Fatal(codes, err)
	}
	return f, codes
}

func TestSecondFactorBeforeItIsConfirmed(t *testing.T) {
	f := begun(t)
	f.expect("", "")
	if _, err := f.Confirm(t.Context(), holder, "000000"); fault.From(err).Code != "second_factor_wrong" {
		t.Errorf("%v", err)
	}
	old := f.code(0)
	made, err := f.Begin(t.Context(), holder, "holder@example.com")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Confirm(t.Context(), holder, old); fault.From(err).Code != "second_factor_wrong" {
		t.Errorf("a replaced secret: %v", err)
	}
	f.secret = made.Secret
	f.now = f.now.Add(secondfactor.SetupLife)
	if _, err := f.Confirm(t.Context(), holder, f.code(0)); fault.From(err).Code != "second_factor_not_begun" {
		t.Errorf("too late: %v", err)
	}
	f.now = f.now.Add(-time.Second)
	if _, err := f.Confirm(t.Context(), holder, f.code(0)); err != nil {
		t.Error(err)
	}
	if _, err := f.Begin(t.Context(), holder, "holder@example.com"); fault.From(err).Code != "second_factor_exists" {
		t.Errorf("begun over a confirmed one: %v", err)
	}
	var sealed []byte
	if err := f.pool.QueryRow(t.Context(), `select secret from second_factors`).Scan(&sealed); err != nil || string(sealed) == f.secret || len(sealed) < len(f.secret) {
		t.Errorf("%q %v", sealed, err)
	}
}

func TestSecondFactorTakesOneStepEitherWayOnce(t *testing.T) {
	f, _ := enabled(t)
	f.expect("", "second_factor_required")
	f.expect(f.code(0), "second_factor_wrong") // confirming spent it
	f.expect(f.code(-30*time.Second), "second_factor_wrong")
	f.expect(f.code(60*time.Second), "second_factor_wrong")
	f.expect(f.code(30*time.Second), "")
	f.expect(f.code(30*time.Second), "second_factor_wrong")
	f.now = f.now.Add(time.Hour)
	f.expect(f.code(-60*time.Second), "second_factor_wrong")
	late := f.code(-30 * time.Second)
	f.expect(late[:3]+" "+late[3:], "")
	f.expect(f.code(0), "")
}

// One code, fifty log-ins at once: one gets in.
func TestSecondFactorCodeCountsOnce(t *testing.T) {
	f, recovery := enabled(t)
	f.now = f.now.Add(time.Hour)
	for _, code := range []string{f.code(0), recovery[0]} {
		var in atomic.Int32
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				replica := secondfactor.NewService(f.store, f.keys, func() time.Time { return f.now })
				if replica.Check(t.Context(), holder, code) == nil {
					in.Add(1)
				}
			})
		}
		wg.Wait()
		if in.Load() != 1 {
			t.Errorf("%q let %d in", code, in.Load())
		}
		f.now = f.now.Add(time.Hour) // the tries of the others
	}
	// The database alone, whatever the limit of tries lets through.
	var in atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if used, err := f.store.UseStep(t.Context(), holder, f.now.Unix()/30); err != nil {
				t.Error(err)
			} else if used {
				in.Add(1)
			}
		})
	}
	wg.Wait()
	if in.Load() != 1 {
		t.Errorf("one step was used %d times", in.Load())
	}
}

func TestSecondFactorGuessesAreBounded(t *testing.T) {
	f, recovery := enabled(t)
	f.now = f.now.Add(time.Hour)
	wrong := "000000"
	for _, off := range []time.Duration{-30 * time.Second, 0, 30 * time.Second} {
		if f.code(off) == wrong {
			wrong = "000001"
		}
	}
	var compared atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if fault.From(f.Check(t.Context(), holder, wrong)).Code == "second_factor_wrong" {
				compared.Add(1)
			}
		})
	}
	wg.Wait()
	if compared.Load() != secondfactor.MaxTries {
		t.Errorf("%d guesses were compared", compared.Load())
	}
	f.expect(f.code(0), "second_factor_tries")
	f.expect(recovery[0], "second_factor_tries")
	f.now = f.now.Add(secondfactor.TriesWindow)
	f.expect(f.code(0), "")
}

func TestRecoveryCodes(t *testing.T) {
	f, codes := enabled(t)
	f.expect(codes[0], "")
	f.expect(codes[0], "second_factor_wrong")
	fresh, err := f.RenewRecovery(t.Context(), holder, codes[1])
	if err != nil || len(fresh) != 10 {
		t.Fatal(fresh, err)
	}
	f.expect(codes[2], "second_factor_wrong")
	f.expect(fresh[9], "")
	if n := count(t, f.pool, `select count(*) from recovery_codes`); n != 9 {
		t.Errorf("%d are left", n)
	}
	if err := f.Remove(t.Context(), holder, fresh[9]); fault.From(err).Code != "second_factor_wrong" {
		t.Errorf("%v", err)
	}
	if err := f.Remove(t.Context(), holder, fresh[8]); err != nil {
		t.Error(err)
	}
	f.expect("", "")
	if err := f.Remove(t.Context(), holder, fresh[7]); fault.From(err).Code != "second_factor_unset" {
		t.Errorf("%v", err)
	}
}
