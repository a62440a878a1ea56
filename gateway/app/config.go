package app

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/gateway/internal/keyring"
	"github.com/kubebyon/kubebyon/gateway/internal/ratelimit"
	"github.com/kubebyon/kubebyon/pkg/config"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
)

// Config is the gateway's environment. Its addresses for people and workers are no part of it: an administrator
// keeps them in the settings.
type Config struct {
	config.Common

	rpc.NATS
	HTTPAddr    config.HostPort `env:"KUBEBYON_HTTP_ADDR" envDefault:":8080"`
	HTTPSAddr   config.HostPort `env:"KUBEBYON_HTTPS_ADDR"`
	DatabaseDSN config.DSN      `env:"KUBEBYON_DATABASE_DSN,required"`

	AdminEmail        string `env:"KUBEBYON_ADMIN_EMAIL" envDefault:"admin@kubebyon.local" accepts:"an e-mail address"`
	AdminPasswordFile string `env:"KUBEBYON_ADMIN_PASSWORD_FILE" accepts:"the path of a file that holds a password of at least 12 characters"`
	EncryptionKeyFile string `env:"KUBEBYON_ENCRYPTION_KEY_FILE" accepts:"the path of a file with a line from: openssl rand -base64 32"`
	MirrorDir         string `env:"KUBEBYON_MIRROR_DIR" accepts:"the path of an existing folder"`

	OIDCIssuerURL        string `env:"KUBEBYON_OIDC_ISSUER_URL" accepts:"the provider's issuer, an https:// URL as the provider spells it"`
	OIDCClientID         string `env:"KUBEBYON_OIDC_CLIENT_ID" accepts:"the client id that the provider gave"`
	OIDCClientSecretFile string `env:"KUBEBYON_OIDC_CLIENT_SECRET_FILE" accepts:"the path of a file that holds the client's secret"`
	OIDCName             string `env:"KUBEBYON_OIDC_NAME" accepts:"what people know the provider by, up to 60 characters"`

	ConsoleDomain    Domain `env:"KUBEBYON_CONSOLE_DOMAIN" accepts:"a domain name such as console.example.com"`
	TLSCertFile      string `env:"KUBEBYON_TLS_CERT_FILE" accepts:"the path of a PEM file with the certificate and those that lead to its authority"`
	TLSKeyFile       string `env:"KUBEBYON_TLS_KEY_FILE" accepts:"the path of a PEM file with the certificate's private key"`
	ACMEEmail        string `env:"KUBEBYON_ACME_EMAIL" accepts:"an e-mail address"`
	ACMEDirectoryURL string `env:"KUBEBYON_ACME_DIRECTORY_URL" accepts:"the https:// URL of an ACME server's directory"`
	ACMECAFile       string `env:"KUBEBYON_ACME_CA_FILE" accepts:"the path of a PEM file with the certificates that the ACME server's own is signed by"`

	SessionCookieSecure bool           `env:"KUBEBYON_SESSION_COOKIE_SECURE" envDefault:"false"`
	CORSAllowedOrigins  []Origin       `env:"KUBEBYON_CORS_ALLOWED_ORIGINS" accepts:"a comma-separated list of origins such as https://console.example.com, or *"`
	TrustedProxies      []netip.Prefix `env:"KUBEBYON_TRUSTED_PROXY_CIDRS" accepts:"a comma-separated list of networks such as 10.0.0.0/8"`

	JoinLimit joinLimit
	AuthLimit authLimit
	APILimit  apiLimit

	adminPassword telemetry.Secret
	keys          keyring.Keyring
	oidcSecret    telemetry.Secret
	acmeRoots     *x509.CertPool // nil: whom the system trusts
}

type joinLimit struct {
	WindowSeconds Count `env:"KUBEBYON_JOIN_RATE_LIMIT_WINDOW_SECONDS" envDefault:"3" accepts:"a whole number from 1 to 1000000"`
	Burst         Count `env:"KUBEBYON_JOIN_RATE_LIMIT_BURST" envDefault:"5" accepts:"a whole number from 1 to 1000000"`
	MaxEntries    Count `env:"KUBEBYON_JOIN_RATE_LIMIT_MAX_ENTRIES" envDefault:"10000" accepts:"a whole number from 1 to 1000000"`
}

type authLimit struct {
	WindowSeconds Count `env:"KUBEBYON_AUTH_RATE_LIMIT_WINDOW_SECONDS" envDefault:"30" accepts:"a whole number from 1 to 1000000"`
	Burst         Count `env:"KUBEBYON_AUTH_RATE_LIMIT_BURST" envDefault:"5" accepts:"a whole number from 1 to 1000000"`
	MaxEntries    Count `env:"KUBEBYON_AUTH_RATE_LIMIT_MAX_ENTRIES" envDefault:"5000" accepts:"a whole number from 1 to 1000000"`
}

type apiLimit struct {
	PerSecond  Count `env:"KUBEBYON_API_RATE_LIMIT_PER_SECOND" envDefault:"100" accepts:"a whole number from 1 to 1000000"`
	Burst      Count `env:"KUBEBYON_API_RATE_LIMIT_BURST" envDefault:"500" accepts:"a whole number from 1 to 1000000"`
	MaxEntries Count `env:"KUBEBYON_API_RATE_LIMIT_MAX_ENTRIES" envDefault:"10000" accepts:"a whole number from 1 to 1000000"`
}

// lookups is how often a client may have an address looked up: a team is added in one go, and a list of strangers takes days.
var lookups = ratelimit.Quota{Name: "lookup", Every: 10 * time.Second, Burst: 50, Entries: 10000}

func (l joinLimit) quota() ratelimit.Quota {
	return ratelimit.Quota{Name: "join", Every: time.Duration(l.WindowSeconds) * time.Second, Burst: int(l.Burst), Entries: int(l.MaxEntries)}
}

func (l apiLimit) quota() ratelimit.Quota {
	return ratelimit.Quota{Name: "api", Every: time.Second / time.Duration(l.PerSecond), Burst: int(l.Burst), Entries: int(l.MaxEntries)}
}

// quota is one of the limits of what may be guessed at; they have the same numbers and count by themselves.
func (l authLimit) quota(name string) ratelimit.Quota {
	return ratelimit.Quota{Name: name, Every: time.Duration(l.WindowSeconds) * time.Second, Burst: int(l.Burst), Entries: int(l.MaxEntries)}
}

// checkSpan bounds the time in which a limit is used up and whole again. window is the variable's name.
func checkSpan(window string, seconds, burst Count) error {
	if most := Count(ratelimit.MaxSpan / time.Second); seconds*burst > most {
		return fmt.Errorf("%s: %d is too long for a burst of %d; it accepts what makes at most %d seconds when it is multiplied by the burst", window, seconds, burst, most)
	}
	return nil
}

// Count is a whole number from 1 to 1000000.
type Count int

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Count) UnmarshalText(text []byte) error {
	n, err := strconv.Atoi(string(text))
	if err != nil || n < 1 || n > 1_000_000 {
		return errors.New("it is out of range")
	}
	*c = Count(n)
	return nil
}

// Origin is a browser's origin, scheme://host[:port], or * for all of them.
type Origin string

// UnmarshalText implements encoding.TextUnmarshaler.
func (o *Origin) UnmarshalText(text []byte) error {
	given := strings.TrimSpace(string(text))
	u, err := url.Parse(given)
	switch {
	case given == "*":
	case err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "":
		return errors.New("an origin starts with https:// or http://")
	case u.Scheme+"://"+u.Host != given || strings.ContainsAny(given, "*"):
		return errors.New("an origin has no path, no wildcard and no trailing slash")
	}
	*o = Origin(strings.ToLower(given))
	return nil
}

// LoadConfig reads the environment. Its error is one line that names the variable and says what it accepts.
func LoadConfig(lookup func(string) (string, bool)) (Config, error) {
	cfg, err := config.Load[Config](lookup)
	if err != nil {
		return Config{}, err
	}
	if account.CheckEmail(cfg.AdminEmail) != nil {
		return Config{}, fmt.Errorf("KUBEBYON_ADMIN_EMAIL: %.80q is no e-mail address; it accepts one such as admin@example.com", cfg.AdminEmail)
	}
	if err := checkSpan("KUBEBYON_JOIN_RATE_LIMIT_WINDOW_SECONDS", cfg.JoinLimit.WindowSeconds, cfg.JoinLimit.Burst); err != nil {
		return Config{}, err
	}
	if err := checkSpan("KUBEBYON_AUTH_RATE_LIMIT_WINDOW_SECONDS", cfg.AuthLimit.WindowSeconds, cfg.AuthLimit.Burst); err != nil {
		return Config{}, err
	}
	if cfg.AdminPasswordFile != "" {
		if cfg.adminPassword, err = readPassword(cfg.AdminPasswordFile); err != nil {
			return Config{}, fmt.Errorf("KUBEBYON_ADMIN_PASSWORD_FILE: %.200q %w; it accepts the path of a file that holds a password of at least %d characters",
				cfg.AdminPasswordFile, err, account.MinPassword)
		}
	}
	if cfg.EncryptionKeyFile != "" {
		text, err := readSecret(cfg.EncryptionKeyFile)
		if err == nil {
			cfg.keys, err = keyring.Parse(text)
		}
		if err != nil {
			return Config{}, fmt.Errorf("KUBEBYON_ENCRYPTION_KEY_FILE: %.200q %w; it accepts the path of a file with a line from: openssl rand -base64 32",
				cfg.EncryptionKeyFile, err)
		}
	}
	if cfg.MirrorDir != "" {
		if info, err := os.Stat(cfg.MirrorDir); err != nil || !info.IsDir() {
			return Config{}, fmt.Errorf("KUBEBYON_MIRROR_DIR: %.200q is no folder that can be read; it accepts the path of an existing folder", cfg.MirrorDir)
		}
	}
	if err := cfg.checkOpenID(); err != nil {
		return Config{}, err
	}
	if err := cfg.checkHTTPS(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

func readPassword(path string) (telemetry.Secret, error) {
	text, err := readSecret(path)
	if err != nil {
		return "", err
	}
	password := strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r")
	if account.CheckPassword(password) != nil {
		return "", errors.New("holds a password that is too short, too long or not UTF-8")
	}
	return telemetry.Secret(password), nil
}

// readSecret never puts the file's text into an error.
func readSecret(path string) (string, error) { return readText(path, 8<<10) }

func readText(path string, most int64) (string, error) {
	f, err := os.Open(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", errors.New("does not exist")
	case err != nil:
		return "", errors.New("cannot be read")
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || info.IsDir() {
		return "", errors.New("is not a file")
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		return "", errors.New("cannot be read")
	case int64(len(text)) > most:
		return "", fmt.Errorf("is larger than %d bytes", most)
	}
	return string(text), nil
}
