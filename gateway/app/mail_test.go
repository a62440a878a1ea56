package app_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/gateway/internal/keyring"
	"github.com/kubebyon/kubebyon/pkg/test/smtptest"
)

const (
	testMail     = settings + "/test-mail"
	mailPassword = "canary-mail-password"
)

func mailThrough(s *smtptest.Sink, security, rest string) string {
	return fmt.Sprintf(`{"settings":{"mail":{"host":%q,"port":%d,"security":%q,"from":"KubeBYON <noreply@example.com>"%s}}}`, s.Host(), s.Port(), security, rest)
}

// What one replica is told about mail and registration the other obeys in the very next request.
func TestMailSettings(t *testing.T) {
	sink, other := smtptest.New(t, smtptest.StartTLS(), smtptest.Auth("gateway", mailPassword)), smtptest.New(t)
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(keyring.New()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	trusting := func(_ map[string]string, w *world) { w.mailRoots = sink.Roots() }
	first := start(t, with("KUBEBYON_ENCRYPTION_KEY_FILE", key), trusting)
	second := start(t, with("KUBEBYON_ENCRYPTION_KEY_FILE", key), trusting, with("KUBEBYON_DATABASE_DSN", first.dsn), with("KUBEBYON_NATS_URL", first.nats), withoutServices)

	const receiver = "somebody@example.com"
	send := func(w *world) answer { return w.call("POST", testMail, "", `{"to":"`+receiver+`"}`) }
	send(second).expect(t, 409, "mail_unset")
	second.call("PUT", settings, "", `{"settings":{"registration_mode":"open"}}`).expect(t, 409, "mail_unset")

	first.call("PUT", settings, "", mailThrough(sink, "starttls", `,"username":"gateway","password":"`+mailPassword+`"`)).expect(t, 200, "")
	if a := send(second); a.status != 200 || a.text != "{\"sent\":true}\n" {
		t.Fatalf("%d %s", a.status, a.text)
	}
	if m := sink.Wait(receiver); !m.Secure || m.User != "gateway" || m.Subject != "KubeBYON test mail" {
		t.Errorf("%+v", m)
	}
	second.call("PUT", settings, "", `{"settings":{"registration_mode":"open"}}`).expect(t, 200, "")
	if a := first.call("GET", settings, "", ""); !strings.Contains(a.text, `"registration_mode":"open"`) || !strings.Contains(a.text, `"password_set":true`) {
		t.Error(a.text)
	}
	first.call("PUT", settings, "", `{"settings":{"mail":null}}`).expect(t, 409, "mail_unset")

	second.call("PUT", settings, "", mailThrough(other, "none", "")).expect(t, 200, "")
	send(first).expect(t, 200, "")
	if m := other.Wait(receiver); m.Secure {
		t.Errorf("%+v", m)
	}
	other.RefuseRecipient(receiver, 550, "nobody")
	if a := send(first); a.status != 409 || a.problem.Code != "mail_recipient_refused" || a.problem.Field != "to" {
		t.Errorf("%d %s", a.status, a.text)
	}
	first.call("PUT", settings, "", mailThrough(sink, "starttls", `,"username":"gateway","password":"canary-wrong-password"`)).expect(t, 200, "")
	if a := send(second); a.status != 409 || a.problem.Code != "mail_auth_failed" || strings.Contains(a.text, "canary") {
		t.Errorf("%d %s", a.status, a.text)
	}
	second.call("PUT", settings, "", `{"settings":{"registration_mode":"closed","mail":null}}`).expect(t, 200, "")
	send(first).expect(t, 409, "mail_unset")

	for _, c := range []struct{ body, code, field string }{
		{`{"settings":{"mail":{"HOST":"x"}}}`, "unknown_field", "HOST"},
		{`{"settings":{"mail":{"host":"x","port":"25"}}}`, "wrong_type", "settings.mail.port"},
		{`{"settings":{"mail":5}}`, "wrong_type", "settings.mail"},
		{`{"settings":{"mail":{}}}`, "field_required", "mail.host"},
		{`{"settings":{"registration_mode":"yes"}}`, "registration_mode_invalid", "registration_mode"},
	} {
		if a := first.call("PUT", settings, "", c.body); a.status != 400 || a.problem.Code != c.code || a.problem.Field != c.field {
			t.Errorf("%s: %d %s", c.body, a.status, a.text)
		}
	}
	for _, to := range []string{`a@example.com\r\nBcc: b@example.com`, `nobody`} {
		first.call("POST", testMail, "", `{"to":"`+to+`"}`).expect(t, 400, "email_invalid")
	}
	first.call("POST", testMail, "", `{}`).expect(t, 400, "field_required")
	for i, w := range []*world{first, second} {
		if log := w.log.String(); strings.Contains(log, "canary-mail") || strings.Contains(log, "canary-wrong") || strings.Contains(log, receiver) {
			t.Errorf("the log of gateway %d holds the password or the receiver", i+1)
		}
	}
}

func TestMailPasswordIsSealed(t *testing.T) {
	w, sink := start(t), smtptest.New(t)
	w.call("PUT", settings, "", mailThrough(sink, "starttls", `,"username":"gateway","password":"`+mailPassword+`"`)).expect(t, 200, "")
	conn, err := pgx.Connect(t.Context(), w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	var kept, events string
	if err := conn.QueryRow(t.Context(), `select value from settings where name = 'mail'`).Scan(&kept); err != nil || !strings.Contains(kept, "sealed_password") {
		t.Fatal(err, kept)
	}
	if err := conn.QueryRow(t.Context(), `select string_agg(e::text, ' ') from audit_log e`).Scan(&events); err != nil || !strings.Contains(events, "mail") {
		t.Fatal(err, events)
	}
	if strings.Contains(kept+events, mailPassword) {
		t.Error("the database holds the password in clear")
	}

	keyless := start(t, with("KUBEBYON_ENCRYPTION_KEY_FILE", ""))
	keyless.call("PUT", settings, "", mailThrough(sink, "starttls", `,"username":"gateway","password":"x"`)).expect(t, 409, "encryption_key_unset")
}
