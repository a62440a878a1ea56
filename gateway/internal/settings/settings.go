// Package settings holds what an administrator sets at run time. It must never cache: a change counts on every
// replica at once.
package settings

import (
	"context"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Settings of the system. An empty address is unset.
type Settings struct {
	JoinBaseURL      string       `json:"join_base_url"`   // where worker machines reach the gateway
	PublicBaseURL    string       `json:"public_base_url"` // where people reach the console and the API
	RegistrationMode Registration `json:"registration_mode"`
	Mail             *Mail        `json:"mail"` // nil while unset
}

// Registration says who may make an account.
type Registration string

// The modes of registration.
const (
	Closed Registration = "closed" // nobody: an administrator makes accounts
	Invite Registration = "invite" // whoever holds an invitation
	Open   Registration = "open"   // anybody who receives mail at the address
)

// Change sets what is not nil, and Mail where it is given.
type Change struct {
	JoinBaseURL      *string    `json:"join_base_url"`
	PublicBaseURL    *string    `json:"public_base_url"`
	RegistrationMode *string    `json:"registration_mode"`
	Mail             MailChange `json:"mail"`
}

// Names under which the store keeps them.
const (
	joinBaseURL      = "join_base_url"
	publicBaseURL    = "public_base_url"
	registrationMode = "registration_mode"
	mailServer       = "mail"
)

// Store keeps settings by name. It fails with unavailable while the database is away.
type Store interface {
	ReadSettings(ctx context.Context) (map[string]string, error)
	// ChangeSettings stores what decide makes of the settings as they are, all of it or, where decide fails, none. No
	// other change happens in between.
	ChangeSettings(ctx context.Context, by string, decide func(now map[string]string) (map[string]string, error)) error
}

// Sealer encrypts what the store keeps of secrets. Without a key it refuses with encryption_key_unset (precondition).
type Sealer interface {
	Seal(plain, place string) ([]byte, error)
	Open(sealed []byte, place string) (string, error)
}

// Service reads and changes settings.
type Service struct {
	store Store
	keys  Sealer
}

// NewService makes one.
func NewService(store Store, keys Sealer) *Service { return &Service{store: store, keys: keys} }

// Read gives the settings as they are now.
func (s *Service) Read(ctx context.Context) (Settings, error) {
	values, err := s.store.ReadSettings(ctx)
	if err != nil {
		return Settings{}, err
	}
	return settingsOf(values)
}

func settingsOf(values map[string]string) (Settings, error) {
	now := Settings{JoinBaseURL: values[joinBaseURL], PublicBaseURL: values[publicBaseURL], RegistrationMode: Closed}
	if mode := values[registrationMode]; mode != "" {
		now.RegistrationMode = Registration(mode)
	}
	kept, err := keptMail(values)
	if err != nil || kept == nil {
		return now, err
	}
	now.Mail = kept.shown()
	return now, nil
}

// Change checks every value and all of them together first, stores them for the account by, and gives what then holds and
// the names of the settings that are now other than before. Of two changes at once the second is checked against the first.
func (s *Service) Change(ctx context.Context, c Change, by string) (now Settings, changed []string, err error) {
	fresh := map[string]string{}
	for name, value := range map[string]*string{joinBaseURL: c.JoinBaseURL, publicBaseURL: c.PublicBaseURL} {
		if value == nil {
			continue
		}
		if fresh[name], err = baseURL(name, *value); err != nil {
			return Settings{}, nil, err
		}
	}
	if c.RegistrationMode != nil {
		if fresh[registrationMode], err = mode(*c.RegistrationMode); err != nil {
			return Settings{}, nil, err
		}
	}
	wanted, err := c.Mail.check()
	if err != nil {
		return Settings{}, nil, err
	}
	err = s.store.ChangeSettings(ctx, by, func(values map[string]string) (map[string]string, error) {
		before := maps.Clone(values)
		if c.Mail.Given {
			text, err := s.mailText(values, wanted)
			if err != nil {
				return nil, err
			}
			fresh[mailServer] = text
		}
		maps.Copy(values, fresh)
		if now, err = settingsOf(values); err != nil {
			return nil, err
		}
		if now.RegistrationMode == Open && now.Mail == nil {
			return nil, openWithoutMail(c)
		}
		changed, err = differences(before, fresh)
		return fresh, err
	})
	if err != nil {
		return Settings{}, nil, err
	}
	return now, changed, nil
}

// differences are the names of what fresh changes, in order. A change of mail names its parts.
func differences(before, fresh map[string]string) ([]string, error) {
	var names []string
	for name, value := range fresh {
		switch {
		case before[name] == value:
		case name == mailServer:
			parts, err := mailDifferences(before, fresh)
			if err != nil {
				return nil, err
			}
			names = append(names, parts...)
		default:
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

func mode(text string) (string, error) {
	switch m := Registration(text); m {
	case Closed, Invite, Open:
		return text, nil
	}
	return "", fault.New(fault.Invalid, "registration_mode_invalid", "there is no registration mode %.40q", text).In(registrationMode).
		Do("use one of: closed, invite, open")
}

func openWithoutMail(c Change) error {
	if c.Mail.Given {
		return fault.New(fault.Precondition, "mail_unset", "registration is open, which needs mail: codes are sent to new addresses").In(mailServer).
			Do("set registration_mode to closed or invite, in this change or before it")
	}
	return fault.New(fault.Precondition, "mail_unset", "open registration needs mail: codes are sent to new addresses").In(registrationMode).
		Do("set mail, in this change or before it")
}

// These go into shell commands and scripts: nothing but plain characters.
var (
	plainHost = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])$`)
	plainPath = regexp.MustCompile(`^(/[A-Za-z0-9._~-]+)*$`)
)

func baseURL(field, text string) (string, error) {
	wrong := func(format string, args ...any) (string, error) {
		return "", fault.New(fault.Invalid, "url_invalid", format, args...).In(field).
			Do("give an address like https://kubebyon.example.com, or an empty text to unset it")
	}
	text = strings.TrimSpace(text)
	if text == "" {
		return "", nil
	}
	if len(text) > 2000 {
		return wrong("%s is longer than 2000 characters", field)
	}
	u, err := url.Parse(text)
	if err != nil {
		return wrong("%s is not a URL", field)
	}
	u.Scheme = strings.ToLower(u.Scheme)
	host := strings.TrimSuffix(u.Host, ":"+u.Port())
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return wrong("%s must start with http:// or https://", field)
	case u.User != nil:
		return wrong("%s must not hold a user name or a password", field)
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(text, "?"):
		return wrong("%s must not hold a query (?)", field)
	case u.Fragment != "" || strings.Contains(text, "#"):
		return wrong("%s must not hold a fragment (#)", field)
	case u.Opaque != "" || !plainHost.MatchString(host) || strings.HasSuffix(u.Host, ":"):
		return wrong("%s has no valid host name or IP address", field)
	case u.Port() != "" && !validPort(u.Port()):
		return wrong("%s has a port outside of 1 to 65535", field)
	}
	path := strings.TrimRight(u.EscapedPath(), "/")
	if !plainPath.MatchString(path) || strings.Contains(path+"/", "/../") || strings.Contains(path+"/", "/./") {
		return wrong("the path of %s may hold letters, digits, dots, dashes and underscores only", field)
	}
	return u.Scheme + "://" + strings.ToLower(u.Host) + path, nil
}

func validPort(port string) bool {
	n, err := strconv.Atoi(port)
	return err == nil && n >= 1 && n <= 65535
}
