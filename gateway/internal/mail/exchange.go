package mail

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"net"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wneessen/go-mail/smtp"

	"github.com/kubebyon/kubebyon/gateway/internal/settings"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// exchange is one connection for one mail, bounded as a whole. Each step's failure has its code.
func (m *Mailer) exchange(ctx context.Context, l letter) error {
	server, err := m.wishes.MailServer(ctx)
	if err != nil {
		return err
	}
	if server.Security == settings.NoTLS && server.Password != "" {
		return fault.New(fault.Precondition, "mail_password_in_clear", "without TLS the password would be sent in clear").In("mail.security")
	}
	message, domain, err := compose(l, server.From, time.Now())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s := session{server: server, to: l.to}
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	// The deadline is the connection's own, and nothing moves it on.
	end, _ := ctx.Deadline()
	if err := conn.SetDeadline(end); err != nil {
		return s.failed("connect", "the connection to the mail server broke", err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()

	config := &tls.Config{ServerName: server.Host, RootCAs: m.roots, MinVersion: tls.VersionTLS12}
	client, err := s.greet(ctx, conn, domain, config)
	if err != nil {
		return err
	}
	if err := s.logIn(client); err != nil {
		return err
	}
	from, err := message.GetSender(false)
	if err != nil {
		return err
	}
	if err := client.Mail(from); err != nil {
		return s.failed("sender_refused", "the mail server does not take mail from the sender in the settings", err).In("mail.from")
	}
	if err := client.Rcpt("<" + l.to + ">"); err != nil {
		return s.failed("recipient_refused", "the mail server does not take mail for this address", err).In("to")
	}
	body, err := client.Data()
	if err != nil {
		return s.failed("refused", "the mail server does not take the mail", err)
	}
	if _, err := message.WriteTo(body); err != nil {
		return s.failed("refused", "the mail server did not take the mail", err)
	}
	if err := body.Close(); err != nil {
		return s.failed("refused", "the mail server did not take the mail", err)
	}
	_ = client.Quit() // it has been taken, however this ends
	return nil
}

// session knows what may never stand in an error.
type session struct {
	server settings.MailServer
	to     string
}

func (s session) dial(ctx context.Context) (net.Conn, error) {
	dialer := net.Dialer{Timeout: patience / 2}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(s.server.Host, strconv.Itoa(s.server.Port)))
	if err == nil {
		return conn, nil
	}
	if name, ok := errors.AsType[*net.DNSError](err); ok {
		f := s.failed("dns_failed", "the mail server's name "+s.server.Host+" is not found", err).In("mail.host").
			Do("check mail.host in the settings and the name server of the gateway's machine")
		if name.IsNotFound {
			f.Kind = fault.Precondition
		}
		return nil, f
	}
	return nil, s.failed("connect_failed", "the mail server "+s.server.Host+" is not reached on port "+strconv.Itoa(s.server.Port), err).In("mail.host").
		Do("check mail.host and mail.port in the settings, and that a firewall lets the gateway through")
}

// greet brings the connection to where a log-in or a mail may follow.
func (s session) greet(ctx context.Context, conn net.Conn, domain string, config *tls.Config) (*smtp.Client, error) {
	if s.server.Security == settings.TLS {
		secure := tls.Client(conn, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, s.noTLS(err)
		}
		conn = secure
	}
	client, err := smtp.NewClient(conn, s.server.Host)
	if err == nil {
		err = client.Hello(domain)
	}
	if err != nil {
		f := s.failed("connect_failed", "what answers on port "+strconv.Itoa(s.server.Port)+" does not greet as a mail server", err).In("mail.port")
		if s.server.Security != settings.TLS {
			f = f.Do("check mail.port and mail.security in the settings: port 465 usually needs tls")
		}
		return nil, f
	}
	if s.server.Security != settings.StartTLS {
		return client, nil
	}
	if ok, _ := client.Extension("STARTTLS"); !ok {
		return nil, fault.New(fault.Precondition, "mail_tls_failed", "the mail server does not offer STARTTLS").In("mail.security").
			Do("use tls with the server's port for it, usually 465")
	}
	if err := client.StartTLS(config); err != nil {
		return nil, s.noTLS(err)
	}
	return client, nil
}

func (s session) noTLS(err error) error {
	if bad, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fault.New(fault.Precondition, "mail_tls_failed", "the mail server's certificate is not valid for %s: %s", s.server.Host, untrusted(bad.Err)).
			In("mail.security").Do("give the server a certificate for its name, by an authority that the gateway's machine trusts").Because(err)
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return fault.New(fault.Precondition, "mail_tls_failed", "what answers on port %d does not speak TLS from the first byte", s.server.Port).
			In("mail.security").Do("use starttls, usually with port 587").Because(err)
	}
	return s.failed("tls_failed", "the connection to the mail server cannot be secured", err).In("mail.security")
}

func untrusted(err error) string {
	switch {
	case isA[x509.UnknownAuthorityError](err):
		return "nobody whom the gateway trusts has signed it"
	case isA[x509.HostnameError](err):
		return "it is for another name"
	case isA[x509.CertificateInvalidError](err):
		return "it has expired, or may not be used for this"
	default:
		return "it cannot be verified"
	}
}

func isA[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

// logIn uses PLAIN, or LOGIN where only that is offered. The connection is secured by now.
func (s session) logIn(client *smtp.Client) error {
	if s.server.Password == "" {
		return nil
	}
	_, offered := client.Extension("AUTH")
	var auth smtp.Auth
	switch ways := strings.Fields(strings.ToUpper(offered)); {
	case slices.Contains(ways, "PLAIN"):
		auth = smtp.PlainAuth("", s.server.Username, string(s.server.Password), s.server.Host, false)
	case slices.Contains(ways, "LOGIN"):
		auth = smtp.LoginAuth(s.server.Username, string(s.server.Password), s.server.Host, false)
	default:
		return fault.New(fault.Precondition, "mail_auth_failed", "the mail server offers no log-in by user name and password").In("mail.username").
			Do("leave username and password out, or use the port for sending mail, usually 587 or 465")
	}
	if err := client.Auth(auth); err != nil {
		return s.failed("auth_failed", "the mail server does not accept the user name and password", err).In("mail.username").
			Do("check mail.username and give mail.password anew")
	}
	return nil
}

// failed makes a step's fault. A server's refusal is final where its code begins with 5; whatever else went wrong may pass.
func (s session) failed(step, what string, err error) *fault.Error {
	code := "mail_" + step
	if answer, ok := errors.AsType[*textproto.Error](err); ok {
		kind := fault.Unavailable
		if answer.Code >= 500 {
			kind = fault.Precondition
		}
		return fault.New(kind, code, "%s: it answers %d %s", what, answer.Code, s.clean(answer.Msg))
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, net.ErrClosed) {
		// The connection is closed by nobody but ourselves, when the time is up.
		return fault.New(fault.Unavailable, code, "%s: no answer in time", what).Because(errors.New("timeout"))
	}
	return fault.New(fault.Unavailable, code, "%s: the connection failed", what).Because(err)
}

// clean makes a server's text fit for an error: short, in one line, without addresses and without what was logged in with.
func (s session) clean(text string) string {
	const most = 200
	secrets := []string{}
	if password := string(s.server.Password); password != "" {
		secrets = append(secrets, password, base64.StdEncoding.EncodeToString([]byte(password)),
			base64.StdEncoding.EncodeToString([]byte("\x00"+s.server.Username+"\x00"+password)))
	}
	for _, secret := range secrets {
		text = strings.ReplaceAll(text, secret, "…")
	}
	var words []string
	for word := range strings.FieldsSeq(strings.ToValidUTF8(text, "\uFFFD")) {
		if strings.Contains(word, "@") || !plain(word) {
			word = "…"
		}
		words = append(words, word)
	}
	line := []rune(strings.Join(words, " "))
	if len(line) > most {
		return string(line[:most]) + "…"
	}
	return string(line)
}
