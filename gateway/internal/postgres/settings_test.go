package postgres_test

import (
	"sync"
	"testing"

	"github.com/kubebyon/kubebyon/gateway/internal/keyring"
	"github.com/kubebyon/kubebyon/gateway/internal/settings"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Two administrators at once, one opening registration and one unsetting mail: one of them is refused, whoever is first.
func TestOpenAndMailAtOnce(t *testing.T) {
	s, _ := open(t)
	here, there := settings.NewService(s, keyring.Keyring{}), settings.NewService(s, keyring.Keyring{})
	closed, opened := "closed", "open"
	server := settings.MailChange{Given: true, Server: &settings.NewMail{Host: "mail.example.com", Port: 25, Security: "none", From: "a@example.com"}}
	for round := range 25 {
		if _, _, err := here.Change(t.Context(), settings.Change{RegistrationMode: &closed, Mail: server}, "usr_a"); err != nil {
			t.Fatal(err)
		}
		errs := make([]error, 2)
		var wg sync.WaitGroup
		wg.Go(func() { _, _, errs[0] = here.Change(t.Context(), settings.Change{RegistrationMode: &opened}, "usr_a") })
		wg.Go(func() {
			_, _, errs[1] = there.Change(t.Context(), settings.Change{Mail: settings.MailChange{Given: true}}, "usr_b")
		})
		wg.Wait()
		now, err := here.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if now.RegistrationMode == settings.Open && now.Mail == nil {
			t.Fatalf("round %d: registration is open without mail", round)
		}
		refused := 0
		for _, err := range errs {
			if err != nil {
				refused++
				if f := fault.From(err); f.Code != "mail_unset" || f.Kind != fault.Precondition {
					t.Fatalf("round %d: %v", round, err)
				}
			}
		}
		if refused != 1 {
			t.Fatalf("round %d: %d were refused: %v", round, refused, errs)
		}
	}
}
