package settings

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/mail"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
)

// Security is how the connection to the mail server is protected.
type Security string

// The kinds of security. Certificates are always verified.
const (
	StartTLS Security = "starttls" // a plain connection that becomes TLS before anything is sent on it
	TLS      Security = "tls"      // TLS from the first byte
	NoTLS    Security = "none"     // in clear, and so without a password
)

// Mail is the mail server, as administrators see it.
type Mail struct {
	Host        string   `json:"host"`
	Port        int      `json:"port"`
	Security    Security `json:"security"`
	Username    string   `json:"username"`
	PasswordSet bool     `json:"password_set"`
	From        string   `json:"from"`
}

// MailServer is what sending needs.
type MailServer struct {
	Host     string
	Port     int
	Security Security
	Username string           // empty: no log-in
	Password telemetry.Secret // empty: no log-in
	From     string           // an address, with or without a name before it
}

// MailChange says what becomes of mail: nothing where it is not given, unset where Server is nil.
type MailChange struct {
	Given  bool
	Server *NewMail
}

// NewMail replaces the mail server. A nil Password keeps the stored one, which belongs to the host, port and user name.
type NewMail struct {
	Host     string            `json:"host"`
	Port     int               `json:"port"`
	Security string            `json:"security"`
	Username string            `json:"username"`
	Password *telemetry.Secret `json:"password"`
	From     string            `json:"from"`
}

// UnmarshalJSON implements json.Unmarshaler: null unsets. A field that is not described is refused.
func (c *MailChange) UnmarshalJSON(text []byte) error {
	*c = MailChange{Given: true}
	var object map[string]json.RawMessage
	if json.Unmarshal(text, &object) == nil { // encoding/json takes NAME for name; the description does not
		for name := range object {
			if !slices.Contains([]string{"host", "port", "security", "username", "password", "from"}, name) {
				return fmt.Errorf("json: unknown field %q", name)
			}
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(&c.Server)
}

// kept is how the store keeps the mail server.
type kept struct {
	Host     string   `json:"host"`
	Port     int      `json:"port"`
	Security Security `json:"security"`
	Username string   `json:"username,omitempty"`
	Sealed   []byte   `json:"sealed_password,omitempty"`
	From     string   `json:"from"`
}

// place ties the sealed password to its server and user: whoever can write to the database cannot have it sent elsewhere.
func (k kept) place() string {
	return fmt.Sprintf("settings.value/mail/%s:%d/%s", k.Host, k.Port, k.Username)
}

func (k kept) shown() *Mail {
	return &Mail{Host: k.Host, Port: k.Port, Security: k.Security, Username: k.Username, PasswordSet: len(k.Sealed) > 0, From: k.From}
}

func keptMail(values map[string]string) (*kept, error) {
	text := values[mailServer]
	if text == "" {
		return nil, nil //nolint:nilnil // unset is no failure
	}
	var k kept
	if err := json.Unmarshal([]byte(text), &k); err != nil {
		return nil, fmt.Errorf("the stored setting mail: %w", err)
	}
	return &k, nil
}

// MailServer gives the mail server as it is now, with its password. It fails with mail_unset (precondition) where there is
// none, and like Sealer where the password cannot be opened.
func (s *Service) MailServer(ctx context.Context) (MailServer, error) {
	values, err := s.store.ReadSettings(ctx)
	if err != nil {
		return MailServer{}, err
	}
	k, err := keptMail(values)
	if err != nil {
		return MailServer{}, err
	}
	if k == nil {
		return MailServer{}, fault.New(fault.Precondition, "mail_unset", "the system has no mail server").Do("set mail in the settings")
	}
	server := MailServer{Host: k.Host, Port: k.Port, Security: k.Security, Username: k.Username, From: k.From}
	if len(k.Sealed) > 0 {
		password, err := s.keys.Open(k.Sealed, k.place())
		if err != nil {
			return MailServer{}, err
		}
		server.Password = telemetry.Secret(password)
	}
	return server, nil
}

// check gives the wanted server in its kept form, without the password; nil where mail is not changed or is unset.
func (c MailChange) check() (*NewMail, error) {
	if c.Server == nil {
		return nil, nil //nolint:nilnil // there is nothing to check
	}
	m := *c.Server
	var err error
	if m.Host, err = mailHost(m.Host); err != nil {
		return nil, err
	}
	if m.Port < 1 || m.Port > 65535 {
		return nil, fault.New(fault.Invalid, "port_invalid", "mail.port must be 1 to 65535").In("mail.port").
			Do("use 587 with starttls, 465 with tls")
	}
	switch Security(m.Security) {
	case StartTLS, TLS, NoTLS:
	default:
		return nil, fault.New(fault.Invalid, "mail_security_invalid", "mail.security must be starttls, tls or none").In("mail.security").
			Do("use starttls with port 587, tls with port 465")
	}
	if len(m.Username) > 320 || !plainText(m.Username) {
		return nil, fault.New(fault.Invalid, "mail_username_invalid", "mail.username must be at most 320 bytes of text in one line").In("mail.username")
	}
	if m.Password != nil && (len(*m.Password) > 1024 || !plainText(string(*m.Password))) {
		return nil, fault.New(fault.Invalid, "mail_password_invalid", "mail.password must be at most 1024 bytes of text in one line").In("mail.password")
	}
	if m.From, err = mailFrom(m.From); err != nil {
		return nil, err
	}
	return &m, nil
}

// mailText is what the store keeps of the wanted server, given what it keeps now; nothing where mail is unset.
func (s *Service) mailText(values map[string]string, wanted *NewMail) (string, error) {
	if wanted == nil {
		return "", nil
	}
	old, err := keptMail(values)
	if err != nil {
		return "", err
	}
	k := kept{Host: wanted.Host, Port: wanted.Port, Security: Security(wanted.Security), Username: wanted.Username, From: wanted.From}
	switch {
	case wanted.Password == nil && old != nil && len(old.Sealed) > 0 && old.place() == k.place():
		k.Sealed = old.Sealed
	case wanted.Password == nil && k.Username != "" && old != nil && len(old.Sealed) > 0:
		return "", fault.New(fault.Invalid, "mail_password_required", "the stored password belongs to another host, port or user name").In("mail.password").
			Do("give the password for this server")
	case wanted.Password != nil && *wanted.Password != "":
		if k.Sealed, err = s.keys.Seal(string(*wanted.Password), k.place()); err != nil {
			return "", err
		}
	}
	switch {
	case k.Username == "" && len(k.Sealed) > 0:
		return "", fault.New(fault.Invalid, "field_required", "mail.username is missing: a password needs one").In("mail.username")
	case k.Username != "" && len(k.Sealed) == 0:
		return "", fault.New(fault.Invalid, "field_required", "mail.password is missing: a user name needs one").In("mail.password")
	case k.Security == NoTLS && len(k.Sealed) > 0:
		return "", fault.New(fault.Invalid, "mail_password_in_clear", "without TLS the password would be sent in clear").In("mail.security").
			Do("use starttls or tls, or leave username and password out")
	}
	text, err := json.Marshal(k)
	return string(text), err
}

// mailDifferences names the parts of mail that a change makes other; mail itself where there was none, or will be none.
func mailDifferences(before, after map[string]string) ([]string, error) {
	a, err := keptMail(before)
	if err != nil {
		return nil, err
	}
	b, err := keptMail(after)
	if err != nil {
		return nil, err
	}
	if a == nil || b == nil {
		return []string{mailServer}, nil
	}
	var names []string
	for name, same := range map[string]bool{
		"host": a.Host == b.Host, "port": a.Port == b.Port, "security": a.Security == b.Security, "username": a.Username == b.Username,
		"password": slices.Equal(a.Sealed, b.Sealed), "from": a.From == b.From,
	} {
		if !same {
			names = append(names, mailServer+"."+name)
		}
	}
	return names, nil
}

func mailHost(text string) (string, error) {
	host := strings.ToLower(strings.TrimSuffix(strings.TrimSpace(text), "."))
	if address, err := netip.ParseAddr(host); err == nil && address.Zone() == "" {
		return address.String(), nil
	}
	if host == "" {
		return "", fault.New(fault.Invalid, "field_required", "mail.host is missing or empty").In("mail.host")
	}
	if len(host) > 253 || !plainHost.MatchString(host) || strings.HasPrefix(host, "[") {
		return "", fault.New(fault.Invalid, "host_invalid", "mail.host must be a host name or an IP address, without a port").In("mail.host").
			Do("give a host like mail.example.com")
	}
	return host, nil
}

// mailFrom takes name@example.com and Name <name@example.com>.
func mailFrom(text string) (string, error) {
	wrong := func() (string, error) {
		return "", fault.New(fault.Invalid, "email_invalid", "mail.from is no sender of the form name@example.com or Name <name@example.com>").In("mail.from")
	}
	text = strings.TrimSpace(text)
	if text == "" {
		return "", fault.New(fault.Invalid, "field_required", "mail.from is missing or empty").In("mail.from")
	}
	if len(text) > 400 || !plainText(text) {
		return wrong()
	}
	sender, err := mail.ParseAddress(text)
	if err != nil {
		return wrong()
	}
	local, domain, _ := strings.Cut(sender.Address, "@")
	ascii := strings.IndexFunc(sender.Address, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`<>"`, r) }) < 0
	if local == "" || len(sender.Address) > 254 || !ascii || !plainHost.MatchString(domain) || !plainText(sender.Name) {
		return wrong()
	}
	if sender.Name == "" {
		return sender.Address, nil
	}
	return strconv.Quote(sender.Name) + " <" + sender.Address + ">", nil
}

// plainText is UTF-8 without control characters: no line break can get into a header or a command.
func plainText(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl) && !strings.ContainsAny(text, "\u2028\u2029")
}
