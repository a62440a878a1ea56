package mail

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/mail"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kubebyon/kubebyon/gateway/internal/settings"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
	"github.com/kubebyon/kubebyon/pkg/test/smtptest"
)

const (
	user     = "gateway"
	password = "canary-mail-password"
	to       = "somebody@example.com"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixed are settings that do not change.
type fixed settings.MailServer

func (f fixed) MailServer(context.Context) (settings.MailServer, error) {
	return settings.MailServer(f), nil
}

func serverOf(s *smtptest.Sink, security settings.Security) fixed {
	return fixed{Host: s.Host(), Port: s.Port(), Security: security, From: `"KubeBYON" <noreply@example.org>`}
}

func (f fixed) logsIn(secret telemetry.Secret) fixed {
	f.Username, f.Password = user, secret
	return f
}

func mailer(w io.Writer, to Settings, roots *x509.CertPool) *Mailer {
	return New(Options{Log: telemetry.NewLogger(w, "text", "debug"), Settings: to, Roots: roots})
}

func TestSend(t *testing.T) {
	for name, c := range map[string]struct {
		options  []smtptest.Option
		security settings.Security
		logsIn   bool
	}{
		"in clear":           {nil, settings.NoTLS, false},
		"starttls":           {[]smtptest.Option{smtptest.StartTLS()}, settings.StartTLS, false},
		"starttls, log-in":   {[]smtptest.Option{smtptest.StartTLS(), smtptest.Auth(user, password)}, settings.StartTLS, true},
		"TLS, log-in":        {[]smtptest.Option{smtptest.TLS(), smtptest.Auth(user, password)}, settings.TLS, true},
		"TLS without log-in": {[]smtptest.Option{smtptest.TLS()}, settings.TLS, false},
	} {
		t.Run(name, func(t *testing.T) {
			sink := smtptest.New(t, c.options...)
			server := serverOf(sink, c.security)
			wantUser := ""
			if c.logsIn {
				server, wantUser = server.logsIn(password), user
			}
			const subject, text = "Код подтверждения — 验证码 für Sie, und das in einem Betreff, der länger ist als eine Zeile", "Ihr Code: ABCDE-FGHJK\n.\n验证码\n"
			if err := mailer(io.Discard, server, sink.Roots()).Send(t.Context(), to, subject, text); err != nil {
				t.Fatal(err)
			}
			m := sink.Wait(to)
			if m.Subject != subject || m.Text != text || m.Sender != "noreply@example.org" || m.User != wantUser || m.Secure != (c.security != settings.NoTLS) {
				t.Errorf("%+v", m)
			}
			if h := m.Header; h.Get("From") != `"KubeBYON" <noreply@example.org>` || h.Get("Auto-Submitted") != "auto-generated" || h.Get("Date") == "" ||
				!strings.HasSuffix(h.Get("Message-Id"), "@example.org>") || strings.Contains(m.Raw, "go-mail") {
				t.Errorf("%v", h)
			}
		})
	}
}

func TestEachStepFails(t *testing.T) {
	plain, startTLS, withTLS := smtptest.New(t), smtptest.New(t, smtptest.StartTLS(), smtptest.Auth(user, password)), smtptest.New(t, smtptest.TLS())
	hangs := smtptest.New(t, smtptest.Hang())
	refuses, busy, cuts := smtptest.New(t), smtptest.New(t), smtptest.New(t)
	refuses.RefuseRecipient(to, 550, "no user "+to+" here")
	refuses.RefuseTimes(1, 553, "not from you")
	busy.RefuseRecipient(to, 451, "later")
	cuts.CutTimes(1)
	closed, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()

	for _, c := range []struct {
		name   string
		server fixed
		roots  *x509.CertPool
		kind   fault.Kind
		code   string
		says   string
	}{
		{"closed port", fixed{Host: "127.0.0.1", Port: closed.Addr().(*net.TCPAddr).Port, Security: settings.NoTLS, From: "a@example.org"}, nil,
			fault.Unavailable, "mail_connect_failed", "is not reached"},
		{"no such name", fixed{Host: "mail.invalid", Port: 25, Security: settings.NoTLS, From: "a@example.org"}, nil, "", "mail_dns_failed", "mail.invalid is not found"},
		{"hangs", serverOf(hangs, settings.StartTLS), nil, fault.Unavailable, "mail_connect_failed", "no answer in time"},
		{"hangs, TLS", serverOf(hangs, settings.TLS), nil, fault.Unavailable, "mail_tls_failed", "no answer in time"},
		{"unknown authority, starttls", serverOf(startTLS, settings.StartTLS).logsIn(password), x509.NewCertPool(), fault.Precondition, "mail_tls_failed", "signed"},
		{"unknown authority, TLS", serverOf(withTLS, settings.TLS), x509.NewCertPool(), fault.Precondition, "mail_tls_failed", "signed"},
		{"another name", fixed{Host: "localhost", Port: withTLS.Port(), Security: settings.TLS, From: "a@example.org"}, withTLS.Roots(),
			fault.Precondition, "mail_tls_failed", "another name"},
		{"no TLS there", serverOf(plain, settings.TLS), nil, fault.Precondition, "mail_tls_failed", "first byte"},
		{"no STARTTLS there", serverOf(plain, settings.StartTLS), nil, fault.Precondition, "mail_tls_failed", "does not offer STARTTLS"},
		{"no log-in there", serverOf(withTLS, settings.TLS).logsIn(password), withTLS.Roots(), fault.Precondition, "mail_auth_failed", "offers no log-in"},
		{"wrong password", serverOf(startTLS, settings.StartTLS).logsIn("canary-wrong-password"), startTLS.Roots(), fault.Precondition, "mail_auth_failed", "535 5.0.0 the password … of gateway is wrong"},
		{"password in clear", serverOf(plain, settings.NoTLS).logsIn(password), nil, fault.Precondition, "mail_password_in_clear", ""},
		{"sender", serverOf(refuses, settings.NoTLS), nil, fault.Precondition, "mail_sender_refused", "553"},
		{"recipient", serverOf(refuses, settings.NoTLS), nil, fault.Precondition, "mail_recipient_refused", "550 5.0.0 no user … here"},
		{"recipient later", serverOf(busy, settings.NoTLS), nil, fault.Unavailable, "mail_recipient_refused", "451"},
		{"cut off", serverOf(cuts, settings.NoTLS), nil, fault.Unavailable, "mail_refused", "connection failed"},
	} {
		ctx, cancel := t.Context(), context.CancelFunc(func() {})
		if strings.HasPrefix(c.name, "hangs") {
			ctx, cancel = context.WithTimeout(ctx, 300*time.Millisecond)
		}
		err := mailer(io.Discard, c.server, c.roots).Send(ctx, to, "subject", "text")
		cancel()
		if f := fault.From(err); err == nil || (c.kind != "" && f.Kind != c.kind) || f.Code != c.code || !strings.Contains(f.Message, c.says) {
			t.Errorf("%s: %v; want %s %s %q", c.name, err, c.kind, c.code, c.says)
		}
		if text := fmt.Sprint(err); strings.Contains(text, "canary") || strings.Contains(text, to) {
			t.Errorf("%s: %s", c.name, text)
		}
	}
	for _, s := range []*smtptest.Sink{plain, startTLS, withTLS, refuses, busy, cuts} {
		if taken := s.Messages(); len(taken) > 0 {
			t.Errorf("%+v", taken)
		}
	}
}

func TestNothingIsInjected(t *testing.T) {
	sink := smtptest.New(t)
	server := serverOf(sink, settings.NoTLS)
	for _, c := range []struct{ to, subject, from, code string }{
		{"a@example.com\r\nBcc: b@example.com", "s", "", "email_invalid"},
		{"a@example.com\nDATA", "s", "", "email_invalid"},
		{"a@example.com>\r\nRCPT TO:<b@example.com", "s", "", "email_invalid"},
		{"a@example.com, b@example.com", "s", "", "email_invalid"},
		{"A <a@example.com>", "s", "", "email_invalid"},
		{"a@example.com ", "s", "", "email_invalid"},
		{"a\x00@example.com", "s", "", "email_invalid"},
		{"", "s", "", "email_invalid"},
		{to, "", "", "mail_subject_invalid"},
		{to, "s\r\nBcc: b@example.com", "", "mail_subject_invalid"},
		{to, "s\nBcc: b@example.com", "", "mail_subject_invalid"},
		{to, "s\rBcc: b@example.com", "", "mail_subject_invalid"},
		{to, "s\u2028Bcc: b@example.com", "", "mail_subject_invalid"},
		{to, "\xff", "", "mail_subject_invalid"},
		{to, strings.Repeat("x", maxSubject+1), "", "mail_subject_invalid"},
		{to, "s", "a@example.org\r\nBcc: b@example.com", "mail_from_invalid"},
		{to, "s", "\"x\r\nBcc: b@example.com\" <a@example.org>", "mail_from_invalid"},
		{to, "s", "=?utf-8?q?x=0D=0ABcc:_b@example.com?= <a@example.org>", "mail_from_invalid"},
		{to, "s", "nobody", "mail_from_invalid"},
	} {
		with := server
		if c.from != "" {
			with.From = c.from
		}
		m := mailer(io.Discard, with, nil)
		if err := m.Send(t.Context(), c.to, c.subject, "text"); fault.From(err) == nil || fault.From(err).Code != c.code {
			t.Errorf("%+v: %v", c, err)
		}
		if c.from == "" {
			if err := m.Enqueue(t.Context(), c.to, c.subject, "text"); fault.From(err) == nil || fault.From(err).Code != c.code {
				t.Errorf("queued: %+v: %v", c, err)
			}
		}
	}
	if sink.Tries() != 0 {
		t.Errorf("%d mails were begun", sink.Tries())
	}
}

// Whatever the parts hold, a message that is made has one receiver and no header but ours.
func FuzzCompose(f *testing.F) {
	f.Add(to, "subject", "noreply@example.org", "text")
	f.Add(to, "Betreff ü", "Ünser Name <noreply@example.org>", ".\r\n.\r\nMAIL FROM:<x>")
	f.Add("a@b\r\nBcc: c@d", "x\r\nBcc: c@d", "=?utf-8?q?=0D=0ABcc:_c?= <a@b>", "\r\n\r\nx")
	ours := map[string]bool{"Mime-Version": true, "Date": true, "Message-Id": true, "Subject": true, "From": true, "To": true,
		"Auto-Submitted": true, "Content-Type": true, "Content-Transfer-Encoding": true}
	f.Fuzz(func(t *testing.T, receiver, subject, from, text string) {
		if check(receiver, subject) != nil {
			return
		}
		message, _, err := compose(letter{id: "id", to: receiver, subject: subject, text: text}, from, time.Unix(0, 0))
		if err != nil {
			return
		}
		var raw bytes.Buffer
		if _, err := message.WriteTo(&raw); err != nil {
			t.Fatal(err)
		}
		parsed, err := mail.ReadMessage(&raw)
		if err != nil {
			t.Fatal(err)
		}
		for name := range parsed.Header {
			if !ours[name] {
				t.Errorf("header %q", name)
			}
		}
		if all, err := parsed.Header.AddressList("To"); err != nil || len(all) != 1 || all[0].Address != receiver {
			t.Errorf("%v %v", all, err)
		}
	})
}

// run starts m and gives what stops it and waits.
func run(t *testing.T, m *Mailer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return func() { cancel(); done.Wait() }
}

func TestQueueOverARealServer(t *testing.T) {
	sink := smtptest.New(t)
	sink.RefuseTimes(1, 451, "later")
	sink.RefuseRecipient("refused@example.com", 550, "refused@example.com is nobody")
	var log bytes.Buffer
	m := mailer(&log, serverOf(sink, settings.NoTLS), nil)
	stop := run(t, m)
	if err := m.Enqueue(t.Context(), to, "one", "CANARY-CODE1\n"); err != nil {
		t.Fatal(err)
	}
	if got := sink.Wait(to); got.Text != "CANARY-CODE1\n" || sink.Tries() != 2 {
		t.Errorf("%+v after %d tries", got, sink.Tries())
	}
	if err := m.Enqueue(t.Context(), "refused@example.com", "two", "CANARY-CODE2\n"); err != nil {
		t.Fatal(err)
	}
	if err := m.Enqueue(t.Context(), to, "three", "CANARY-CODE3\n"); err != nil {
		t.Fatal(err)
	}
	stop() // sends what is left
	if got := sink.Wait(to); got.Text != "CANARY-CODE3\n" {
		t.Errorf("%+v", got)
	}
	text := log.String()
	for _, want := range []string{"mail not sent yet, trying again", "mail sent", "code=mail_recipient_refused", "tries=2"} {
		if !strings.Contains(text, want) {
			t.Errorf("the log lacks %q:\n%s", want, text)
		}
	}
	for _, secret := range []string{"CANARY", "example.com", "one", "three"} {
		if strings.Contains(text, secret) {
			t.Errorf("the log holds %q:\n%s", secret, text)
		}
	}
	if err := m.Enqueue(t.Context(), to, "four", "x"); fault.From(err) == nil || fault.From(err).Code != "mail_busy" {
		t.Errorf("after the end: %v", err)
	}
}

func discarding(deliver func(context.Context, letter) error) *Mailer {
	m := New(Options{Log: slog.New(slog.DiscardHandler)})
	m.deliver = deliver
	return m
}

func later() error { return fault.New(fault.Unavailable, "mail_connect_failed", "away") }

func TestQueueIsBounded(t *testing.T) {
	m := discarding(func(context.Context, letter) error { return nil })
	for range capacity {
		if err := m.Enqueue(t.Context(), to, "s", "x"); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Enqueue(t.Context(), to, "s", "x"); !fault.Is(err, fault.Unavailable) || fault.From(err).Code != "mail_busy" {
		t.Fatalf("%v", err)
	}
	run(t, m)()
	if len(m.places) != 0 {
		t.Errorf("%d places are still taken", len(m.places))
	}
}

func TestTriesAgainAndGivesUp(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want []time.Duration
	}{
		"may pass": {later(), []time.Duration{0, 1, 3, 7, 15, 31, 63, 123, 183, 243}},
		"final":    {fault.New(fault.Precondition, "mail_auth_failed", "no"), []time.Duration{0}},
		"unknown":  {errors.New("unknown"), []time.Duration{0}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				var at []time.Duration
				m := discarding(func(context.Context, letter) error { at = append(at, time.Since(begin)/time.Second); return c.err })
				stop := run(t, m)
				if err := m.Enqueue(t.Context(), to, "s", "x"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * giveUp)
				stop()
				if fmt.Sprint(at) != fmt.Sprint(c.want) || len(m.places) != 0 {
					t.Errorf("tried after %v seconds, want %v", at, c.want)
				}
			})
		})
	}
}

func TestOneThatHangsHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		sent := 0
		m := discarding(func(ctx context.Context, l letter) error {
			if l.text == "hangs" {
				<-ctx.Done()
				return ctx.Err()
			}
			mu.Lock()
			defer mu.Unlock()
			sent++
			return nil
		})
		stop := run(t, m)
		for _, text := range []string{"hangs", "a", "b"} {
			if err := m.Enqueue(t.Context(), to, "s", text); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		mu.Lock()
		if sent != 2 {
			t.Errorf("%d were sent beside the one that hangs", sent)
		}
		mu.Unlock()
		begin := time.Now()
		stop()
		if took := time.Since(begin); took != atStop {
			t.Errorf("stopping took %v", took)
		}
	})
}

// A mail that waits for another try is tried once more at the stop, at once.
func TestStopTriesOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		m := discarding(func(context.Context, letter) error { tries++; return later() })
		stop := run(t, m)
		if err := m.Enqueue(t.Context(), to, "s", "x"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second) // tries after 0, 1, 3 and 7 s
		begin := time.Now()
		stop()
		if tries != 5 || time.Since(begin) != 0 {
			t.Errorf("%d tries, stopping took %v", tries, time.Since(begin))
		}
	})
}

func TestPanicIsAFailure(t *testing.T) {
	var log bytes.Buffer
	m := New(Options{Log: telemetry.NewLogger(&log, "text", "debug")})
	m.deliver = func(_ context.Context, l letter) error { panic(l.text) }
	stop := run(t, m)
	if err := m.Enqueue(t.Context(), to, "s", "CANARY"); err != nil {
		t.Fatal(err)
	}
	stop()
	if text := log.String(); !strings.Contains(text, "panicked") || strings.Contains(text, "CANARY") || len(m.places) != 0 {
		t.Errorf("%s", text)
	}
}
