package settings

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubebyon/kubebyon/gateway/internal/keyring"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
)

// memory is a Store for one goroutine; the store's own tests are PostgreSQL's.
type memory map[string]string

func (m memory) ReadSettings(context.Context) (map[string]string, error) { return maps.Clone(m), nil }

func (m memory) ChangeSettings(_ context.Context, _ string, decide func(map[string]string) (map[string]string, error)) error {
	fresh, err := decide(maps.Clone(m))
	maps.Copy(m, fresh)
	return err
}

func keys(t *testing.T) keyring.Keyring {
	t.Helper()
	k, err := keyring.Parse(keyring.New())
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func change(t *testing.T, text string) (c Change) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

const server = `"host":"mail.example.com","port":587,"security":"starttls","from":"noreply@example.com"`

func TestChangesInOrder(t *testing.T) {
	rows := memory{}
	s := NewService(rows, keys(t))
	for _, c := range []struct{ change, code, field, changed string }{
		{`{}`, "", "", "[]"},
		{`{"registration_mode":"open"}`, "mail_unset", "registration_mode", ""},
		{`{"registration_mode":"Open"}`, "registration_mode_invalid", "registration_mode", ""},
		{`{"registration_mode":""}`, "registration_mode_invalid", "registration_mode", ""},
		{`{"registration_mode":"invite"}`, "", "", "[registration_mode]"},
		{`{"registration_mode":"invite","join_base_url":""}`, "", "", "[]"},
		{`{"mail":{` + server + `},"registration_mode":"open","join_base_url":"https://x.example.com"}`, "", "", "[join_base_url mail registration_mode]"},
		{`{"mail":null}`, "mail_unset", "mail", ""},
		{`{"mail":{` + server + `}}`, "", "", "[]"},
		{`{"mail":{` + server + `,"username":"u"}}`, "field_required", "mail.password", ""},
		{`{"mail":{` + server + `,"password":"p"}}`, "field_required", "mail.username", ""},
		{`{"mail":{` + server + `,"username":"u","password":"canary"}}`, "", "", "[mail.password mail.username]"},
		{`{"mail":{` + server + `,"username":"u"}}`, "", "", "[]"},
		{`{"mail":{` + server + `,"username":"v"}}`, "mail_password_required", "mail.password", ""},
		{`{"mail":{` + strings.Replace(server, "587", "588", 1) + `,"username":"u"}}`, "mail_password_required", "mail.password", ""},
		{`{"mail":{` + strings.Replace(server, "mail.", "evil.", 1) + `,"username":"u"}}`, "mail_password_required", "mail.password", ""},
		{`{"mail":{` + strings.Replace(server, "starttls", "none", 1) + `,"username":"u"}}`, "mail_password_in_clear", "mail.security", ""},
		{`{"mail":{` + strings.Replace(server, "noreply", "system", 1) + `,"username":"u"}}`, "", "", "[mail.from]"},
		{`{"mail":null,"registration_mode":"closed"}`, "", "", "[mail registration_mode]"},
		{`{"mail":null}`, "", "", "[]"},
	} {
		before := maps.Clone(rows)
		_, changed, err := s.Change(t.Context(), change(t, c.change), "usr_a")
		if c.code != "" {
			if f := fault.From(err); f == nil || f.Code != c.code || f.Field != c.field {
				t.Errorf("%s: %v, want %s in %s", c.change, err, c.code, c.field)
			}
			if diff := cmp.Diff(before, rows); diff != "" {
				t.Errorf("%s is refused and stored: %s", c.change, diff)
			}
			continue
		}
		if err != nil || fmt.Sprint(changed) != c.changed {
			t.Errorf("%s: %v, %v; want %s", c.change, changed, err, c.changed)
		}
		if strings.Contains(fmt.Sprint(rows), "canary") {
			t.Errorf("%s: the password is stored in clear", c.change)
		}
	}
}

func TestMailRefuses(t *testing.T) {
	s := NewService(memory{}, keys(t))
	for _, c := range []struct{ old, fresh, code, field string }{
		{`"mail.example.com"`, `""`, "field_required", "mail.host"},
		{`"mail.example.com"`, `"mail.example.com:25"`, "host_invalid", "mail.host"},
		{`"mail.example.com"`, `"mail.example.com\r\nx"`, "host_invalid", "mail.host"},
		{`"mail.example.com"`, `"unix:///x"`, "host_invalid", "mail.host"},
		{`"mail.example.com"`, `"fe80::1%eth0"`, "host_invalid", "mail.host"},
		{`587`, `0`, "port_invalid", "mail.port"},
		{`587`, `65536`, "port_invalid", "mail.port"},
		{`starttls`, `ssl`, "mail_security_invalid", "mail.security"},
		{`"port"`, `"username":"a\nb","port"`, "mail_username_invalid", "mail.username"},
		{`"port"`, `"username":"u","password":"a\nb","port"`, "mail_password_invalid", "mail.password"},
		{`"noreply@example.com"`, `""`, "field_required", "mail.from"},
		{`"noreply@example.com"`, `"nobody"`, "email_invalid", "mail.from"},
		{`"noreply@example.com"`, `"a@example.com\r\nBcc: b@example.com"`, "email_invalid", "mail.from"},
		{`"noreply@example.com"`, `"=?utf-8?q?x=0D=0ABcc:?= <a@example.com>"`, "email_invalid", "mail.from"},
		{`"noreply@example.com"`, `"a@example.com, b@example.com"`, "email_invalid", "mail.from"},
	} {
		_, _, err := s.Change(t.Context(), change(t, `{"mail":{`+strings.Replace(server, c.old, c.fresh, 1)+`}}`), "usr_a")
		if f := fault.From(err); f == nil || f.Code != c.code || f.Field != c.field || f.Kind != fault.Invalid {
			t.Errorf("%s: %v, want %s in %s", c.fresh, err, c.code, c.field)
		}
	}
	for _, text := range []string{`{"mail":{"hosts":"x"}}`, `{"mail":{"HOST":"x"}}`, `{"mail":"x"}`, `{"mail":{"port":"25"}}`} {
		var c Change
		if err := json.Unmarshal([]byte(text), &c); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

func TestSealedPassword(t *testing.T) {
	rows := memory{}
	s := NewService(rows, keys(t))
	if _, err := s.MailServer(t.Context()); fault.From(err) == nil || fault.From(err).Code != "mail_unset" {
		t.Fatal(err)
	}
	withPassword := change(t, `{"mail":{`+strings.Replace(server, "noreply@example.com", `Kübe <noreply@example.com>`, 1)+`,"username":"u","password":"canary"}}`)
	if _, _, err := NewService(rows, keyring.Keyring{}).Change(t.Context(), withPassword, "usr_a"); fault.From(err) == nil || fault.From(err).Code != "encryption_key_unset" {
		t.Errorf("without a key: %v", err)
	}
	now, _, err := s.Change(t.Context(), withPassword, "usr_a")
	if diff := cmp.Diff(&Mail{Host: "mail.example.com", Port: 587, Security: StartTLS, Username: "u", PasswordSet: true, From: `"Kübe" <noreply@example.com>`}, now.Mail); err != nil || diff != "" {
		t.Fatal(err, diff)
	}
	got, err := s.MailServer(t.Context())
	want := MailServer{Host: "mail.example.com", Port: 587, Security: StartTLS, Username: "u", Password: "canary", From: `"Kübe" <noreply@example.com>`}
	if err != nil || got != want {
		t.Fatal(err, got.Password == telemetry.Secret("canary"))
	}
	if strings.Contains(fmt.Sprintf("%+v", got), "canary") {
		t.Error("printing shows the password")
	}
	// Whoever can write to the database does not have the password sent to a server of theirs.
	rows[mailServer] = strings.Replace(rows[mailServer], "mail.example.com", "evil.example.com", 1)
	if _, err := s.MailServer(t.Context()); fault.From(err) == nil || fault.From(err).Code != "encryption_key_wrong" {
		t.Errorf("moved to another host: %v", err)
	}
}
