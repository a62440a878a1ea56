package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/gateway/internal/idempotency"
	"github.com/kubebyon/kubebyon/gateway/internal/keyring"
	store "github.com/kubebyon/kubebyon/gateway/internal/postgres"
	"github.com/kubebyon/kubebyon/gateway/internal/postgres/migrations"
	"github.com/kubebyon/kubebyon/gateway/internal/session"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/postgres"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

// asking gives what sends one and the same request with a key, and has handle answer it.
func asking(t *testing.T) func(handle func(http.ResponseWriter, *http.Request) error) (*httptest.ResponseRecorder, error) {
	t.Helper()
	pool, err := postgres.Open(t.Context(), pgtest.New(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := postgres.Migrate(t.Context(), pool, "gateway", migrations.FS); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `insert into users (id, email, password_hash, role) values ('usr_a', 'a', '', 'user')`); err != nil {
		t.Fatal(err)
	}
	s := New(Options{Log: slog.New(slog.DiscardHandler)})
	s.AttachIdentity(Identity{Repeats: idempotency.NewService(store.NewStore(pool).Keys(nil), keyring.Keyring{})})
	return func(handle func(http.ResponseWriter, *http.Request) error) (*httptest.ResponseRecorder, error) {
		out := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/x", strings.NewReader("{}"))
		r.Header.Set(idempotency.Header, "k")
		r = r.WithContext(withCaller(r.Context(), caller{account: account.Account{ID: "usr_a"}, session: session.Session{ID: "ses_a"}}))
		return out, s.once(out, r, on(http.MethodPost, "/x", signed, handle))
	}
}

func TestPanicsAndFailuresFreeTheKey(t *testing.T) {
	ask := asking(t)
	for range 2 {
		func() {
			defer func() {
				if p := recover(); p != "on purpose" {
					t.Errorf("%v", p)
				}
			}()
			_, err := ask(func(http.ResponseWriter, *http.Request) error { panic("on purpose") })
			t.Errorf("it returned %v", err)
		}()
	}
	// Half an answer before a failure is none.
	wrong := errors.New("wrong")
	if out, err := ask(func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Location", "/half")
		w.WriteHeader(http.StatusCreated)
		return wrong
	}); !errors.Is(err, wrong) || out.Header().Get("Location") != "" {
		t.Errorf("%v %v", out.Header(), err)
	}
	// What is no success is given and not kept.
	for range 2 {
		if out, err := ask(func(w http.ResponseWriter, _ *http.Request) error { w.WriteHeader(http.StatusTeapot); return nil }); err != nil || out.Code != http.StatusTeapot {
			t.Errorf("%d %v", out.Code, err)
		}
	}
	if out, err := ask(func(w http.ResponseWriter, _ *http.Request) error { _, err := w.Write([]byte("done")); return err }); err != nil || out.Code != 200 || out.Body.String() != "done" {
		t.Errorf("%d %q %v", out.Code, out.Body, err)
	}
	out, err := ask(func(http.ResponseWriter, *http.Request) error { t.Error("it was done again"); return nil })
	if err != nil || out.Code != 200 || out.Body.String() != "done" || out.Header().Get(idempotency.Replayed) != "true" || out.Header().Get("Content-Length") != "4" {
		t.Errorf("%d %q %v %v", out.Code, out.Body, out.Header(), err)
	}
}

// An answer that is too large to be kept is given once, and what it answers is not done twice.
func TestLargeAnswersAreGivenOnce(t *testing.T) {
	ask := asking(t)
	large := strings.Repeat("x", idempotency.MaxAnswer+1)
	if out, err := ask(func(w http.ResponseWriter, _ *http.Request) error { _, err := w.Write([]byte(large)); return err }); err != nil || out.Body.String() != large {
		t.Errorf("%d bytes, %v", out.Body.Len(), err)
	}
	_, err := ask(func(http.ResponseWriter, *http.Request) error { t.Error("it was done again"); return nil })
	if f := fault.From(err); f == nil || f.Code != "idempotency_answer_sealed" {
		t.Error(err)
	}
}

// What has begun has the time that the request had, also once its client is gone.
func TestOutlive(t *testing.T) {
	parent, hangUp := context.WithTimeout(context.WithValue(t.Context(), queryKey{}, "q"), time.Hour)
	want, _ := parent.Deadline()
	ctx, end := outlive(parent)
	defer end()
	hangUp()
	if got, ok := ctx.Deadline(); !ok || !got.Equal(want) || ctx.Err() != nil || ctx.Value(queryKey{}) != "q" {
		t.Errorf("%v %v %v", got, ok, ctx.Err())
	}
	unbounded, end := outlive(t.Context())
	defer end()
	if got, ok := unbounded.Deadline(); !ok || time.Until(got) > requestTime {
		t.Errorf("%v %v", got, ok)
	}
}
