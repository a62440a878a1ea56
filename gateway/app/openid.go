package app

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kubebyon/kubebyon/gateway/internal/openid"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
)

// checkOpenID reads the secret. Of issuer, client id and secret there are all or none.
func (c *Config) checkOpenID() error {
	if c.OIDCIssuerURL == "" && c.OIDCClientID == "" && c.OIDCClientSecretFile == "" {
		if c.OIDCName != "" {
			return errors.New("KUBEBYON_OIDC_ISSUER_URL: it is not set, but KUBEBYON_OIDC_NAME is; it accepts the provider's issuer, an https:// URL as the provider spells it")
		}
		return nil
	}
	if err := checkIssuer(c.OIDCIssuerURL); err != nil {
		return fmt.Errorf("KUBEBYON_OIDC_ISSUER_URL: %w; it accepts the provider's issuer, an https:// URL as the provider spells it (http:// on this machine alone)", err)
	}
	if c.OIDCClientID == "" || len(c.OIDCClientID) > 255 || !printable(c.OIDCClientID) {
		return fmt.Errorf("KUBEBYON_OIDC_CLIENT_ID: %.80q is no client id; it accepts the one that the provider gave, and is needed with KUBEBYON_OIDC_ISSUER_URL", c.OIDCClientID)
	}
	if c.OIDCClientSecretFile == "" {
		return errors.New("KUBEBYON_OIDC_CLIENT_SECRET_FILE: it is not set, but KUBEBYON_OIDC_ISSUER_URL is; it accepts the path of a file that holds the client's secret")
	}
	text, err := readSecret(c.OIDCClientSecretFile)
	secret := strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r")
	if err == nil && (secret == "" || !printable(secret)) {
		err = errors.New("holds no secret of one line")
	}
	if err != nil {
		return fmt.Errorf("KUBEBYON_OIDC_CLIENT_SECRET_FILE: %.200q %w; it accepts the path of a file that holds the client's secret", c.OIDCClientSecretFile, err)
	}
	c.oidcSecret = telemetry.Secret(secret)
	if utf8.RuneCountInString(c.OIDCName) > 60 || !printable(c.OIDCName) || strings.TrimSpace(c.OIDCName) != c.OIDCName {
		return fmt.Errorf("KUBEBYON_OIDC_NAME: %.80q is too long, or has blanks around it or characters that cannot be shown; it accepts what people know the provider by, up to 60 characters", c.OIDCName)
	}
	return nil
}

// checkIssuer never repeats the value: it may hold a password where none belongs.
func checkIssuer(issuer string) error {
	if issuer == "" {
		return errors.New("it is not set, but other KUBEBYON_OIDC variables are")
	}
	if err := openid.CheckURL(issuer); err != nil {
		return fmt.Errorf("the value %w", err)
	}
	if strings.ContainsAny(issuer, "?#") || !printable(issuer) || len(issuer) > 1000 {
		return errors.New("the value has a query, a fragment or characters that cannot be shown")
	}
	return nil
}

func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// openID is nil where there is no provider.
func (c *Config) openID() *openid.Client {
	if c.OIDCIssuerURL == "" {
		return nil
	}
	name := c.OIDCName
	if issuer, err := url.Parse(c.OIDCIssuerURL); name == "" && err == nil {
		name = issuer.Hostname()
	}
	return openid.New(openid.Options{Issuer: c.OIDCIssuerURL, ClientID: c.OIDCClientID, Secret: c.oidcSecret, Name: name, Now: time.Now})
}
