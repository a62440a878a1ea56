package postgres_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/gateway/internal/session"
	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

type policy account.Policy

func (p policy) Policy(context.Context) (account.Policy, error) { return account.Policy(p), nil }

type mailbox chan [2]string

func (m mailbox) Enqueue(_ context.Context, to, _, text string) error {
	m <- [2]string{to, text}
	return nil
}

func codeIn(text string) string {
	_, rest, _ := strings.Cut(text, "Your code: ")
	code, _, _ := strings.Cut(rest, "\n")
	return code
}

func race(n int, do func() error) (won int32, losers []error) {
	var wins atomic.Int32
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if err := do(); err != nil {
				mu.Lock()
				losers = append(losers, err)
				mu.Unlock()
				return
			}
			wins.Add(1)
		})
	}
	wg.Wait()
	return wins.Load(), losers
}

func TestCodesAndInvitations(t *testing.T) {
	s, pool := open(t)
	hasher, err := account.NewHasher(4, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	accounts := account.NewService(s, hasher, time.Now)
	if _, err := accounts.EnsureAdmin(t.Context(), "admin@example.com", password); err != nil {
		t.Fatal(err)
	}
	admin, err := accounts.Authenticate(t.Context(), "admin@example.com", password)
	if err != nil {
		t.Fatal(err)
	}
	box := make(mailbox, 10)
	outbox := account.NewOutbox(box, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	sending.Go(func() { outbox.Run(ctx) })
	defer sending.Wait()
	defer cancel()
	rules := policy{Registration: account.Open, PublicBaseURL: "https://x.example", Mail: true}
	door := account.NewRegistration(s, hasher, rules, outbox, nil, time.Now)
	passwords := account.NewPasswords(s, hasher, rules, outbox, time.Now)
	ask := func(p account.Purpose, email string) {
		t.Helper()
		if err := door.RequestCode(t.Context(), account.CodeRequest{Email: email, Purpose: p}); err != nil {
			t.Fatal(err)
		}
	}

	// Five tries, and the newest counts.
	ask(account.ToRegister, "a@example.com")
	old := codeIn((<-box)[1])
	for range account.MaxCodeTries {
		if _, err := door.Register(t.Context(), "a@example.com", password, "00000-00000"); fault.From(err).Code != "code_wrong" {
			t.Fatal(err)
		}
	}
	if _, err := door.Register(t.Context(), "a@example.com", password, old); fault.From(err).Code != "code_wrong" {
		t.Errorf("a sixth try: %v", err)
	}
	ask(account.ToRegister, "a@example.com")
	code := codeIn((<-box)[1])
	before := hasher.Done()
	won, losers := race(100, func() error { _, err := door.Register(t.Context(), "a@example.com", password, code); return err })
	if won != 1 || hasher.Done()-before > account.MaxCodeTries {
		t.Errorf("%d registered with one code, %d hashes", won, hasher.Done()-before)
	}
	for _, err := range losers {
		if fault.From(err).Code != "code_wrong" {
			t.Errorf("a loser: %v", err)
		}
	}

	// Known and unknown addresses: the same answers; a stranger's mail tells only the holder.
	ask(account.ToRegister, "a@example.com")
	if told := <-box; codeIn(told[1]) != "" || !strings.Contains(told[1], "https://x.example/reset") {
		t.Errorf("%v", told)
	}
	ask(account.ToReset, "nobody@example.com")
	ask(account.ToReset, "a@example.com")
	reset := <-box
	if reset[0] != "a@example.com" {
		t.Errorf("nobody got a mail: %v", reset)
	}
	sessions := session.NewService(s, time.Now)
	a, err := accounts.Authenticate(t.Context(), "a@example.com", password)
	if err != nil {
		t.Fatal(err)
	}
	token, _, err := sessions.Open(t.Context(), a, session.Client{})
	if err != nil {
		t.Fatal(err)
	}
	for _, email := range []string{"nobody@example.com", "never@example.com"} {
		if err := passwords.Reset(t.Context(), email, codeIn(reset[1]), "another password"); fault.From(err).Code != "code_wrong" {
			t.Errorf("%s: %v", email, err)
		}
	}
	if won, _ := race(100, func() error {
		return passwords.Reset(t.Context(), "a@example.com", codeIn(reset[1]), "another password")
	}); won != 1 {
		t.Errorf("%d resets with one code", won)
	}
	if _, err := sessions.Find(t.Context(), token); err == nil {
		t.Error("a session outlives the password")
	}
	if _, err := accounts.Authenticate(t.Context(), "a@example.com", "another password"); err != nil {
		t.Error(err)
	}
	if n := count(t, pool, `select count(*) from mail_codes where email = 'a@example.com' and purpose = 'reset_password'`); n != 0 {
		t.Errorf("%d spent codes kept", n)
	}
	<-box // the notice

	// One invitation, one account; none while registration is closed.
	_, link, err := account.NewInvitations(s, rules, outbox, time.Now).Create(t.Context(), admin, "b@example.com", contract.RoleAdmin)
	if err != nil {
		t.Fatal(err)
	}
	_, invitation, _ := strings.Cut(link, "#invitation=")
	closed := account.NewRegistration(s, hasher, policy{}, outbox, nil, time.Now)
	if _, err := closed.RegisterInvited(t.Context(), invitation, password); fault.From(err).Code != "registration_closed" {
		t.Errorf("closed: %v", err)
	}
	if won, _ := race(20, func() error { _, err := door.RegisterInvited(t.Context(), invitation, password); return err }); won != 1 {
		t.Errorf("%d accounts by one invitation", won)
	}

	// Two administrators take away each other: one stays, whoever wins.
	b, err := accounts.Authenticate(t.Context(), "b@example.com", password)
	if err != nil {
		t.Fatal(err)
	}
	users, off := account.NewUsers(s, time.Now), true
	token, _, err = sessions.Open(t.Context(), b, session.Client{})
	if err != nil {
		t.Fatal(err)
	}
	var turn atomic.Int32
	won, losers = race(2, func() error {
		_, err := users.Change(t.Context(), []string{admin.ID, b.ID}[turn.Add(1)-1], account.UserChange{Disabled: &off})
		return err
	})
	if won != 1 || len(losers) != 1 || fault.From(losers[0]).Code != "last_admin" {
		t.Fatalf("%d disabled, %v", won, losers)
	}
	_, logIn := accounts.Authenticate(t.Context(), "b@example.com", password)
	_, seen := sessions.Find(t.Context(), token)
	now, err := users.Get(t.Context(), b.ID)
	if err != nil || (logIn != nil) != now.Disabled || (seen != nil) != now.Disabled {
		t.Errorf("disabled %v: log-in %v, session %v (%v)", now.Disabled, logIn, seen, err)
	}
	// A log-in that was under way opens a session that does not count.
	for _, x := range []account.Account{admin, b} {
		now, err := users.Get(t.Context(), x.ID)
		if err != nil {
			t.Fatal(err)
		}
		late, _, err := sessions.Open(t.Context(), x, session.Client{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sessions.Find(t.Context(), late); (err != nil) != now.Disabled {
			t.Errorf("disabled %v: a late session: %v", now.Disabled, err)
		}
	}
}
