// Package settings holds what an administrator sets at run time. It must never cache: a change counts on every
// replica at once.
package settings

import (
	"context"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Settings of the system. An empty address is unset.
type Settings struct {
	JoinBaseURL   string `json:"join_base_url"`   // where worker machines reach the gateway
	PublicBaseURL string `json:"public_base_url"` // where people reach the console and the API
}

// Change sets what is not nil.
type Change struct {
	JoinBaseURL   *string `json:"join_base_url"`
	PublicBaseURL *string `json:"public_base_url"`
}

// Names under which the store keeps them.
const (
	joinBaseURL   = "join_base_url"
	publicBaseURL = "public_base_url"
)

// Store keeps settings by name. It fails with unavailable while the database is away.
type Store interface {
	ReadSettings(ctx context.Context) (map[string]string, error)
	// WriteSettings stores all of them or none.
	WriteSettings(ctx context.Context, values map[string]string, by string) error
}

// Service reads and changes settings.
type Service struct{ store Store }

// NewService makes one.
func NewService(store Store) *Service { return &Service{store: store} }

// Read gives the settings as they are now.
func (s *Service) Read(ctx context.Context) (Settings, error) {
	values, err := s.store.ReadSettings(ctx)
	if err != nil {
		return Settings{}, err
	}
	return Settings{JoinBaseURL: values[joinBaseURL], PublicBaseURL: values[publicBaseURL]}, nil
}

// Change checks every value first, stores them for the account by, and gives what then holds.
func (s *Service) Change(ctx context.Context, c Change, by string) (Settings, error) {
	values := map[string]string{}
	for name, value := range map[string]*string{joinBaseURL: c.JoinBaseURL, publicBaseURL: c.PublicBaseURL} {
		if value == nil {
			continue
		}
		clean, err := baseURL(name, *value)
		if err != nil {
			return Settings{}, err
		}
		values[name] = clean
	}
	if err := s.store.WriteSettings(ctx, values, by); err != nil {
		return Settings{}, err
	}
	return s.Read(ctx)
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
