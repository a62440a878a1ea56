package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/gateway/internal/certificate"
	"github.com/kubebyon/kubebyon/gateway/internal/clientaddr"
)

const (
	letsEncrypt = "https://acme-v02.api.letsencrypt.org/directory"
	// filesEvery is how often the certificate's files are looked at, ordersEvery how often one from an ACME server is.
	filesEvery  = 5 * time.Second
	ordersEvery = 10 * time.Minute
)

// Domain is a DNS name with at least two labels, in lower case; empty: none.
type Domain string

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Domain) UnmarshalText(text []byte) error {
	name := strings.ToLower(strings.TrimSpace(string(text)))
	if _, err := netip.ParseAddr(name); err == nil {
		return errors.New("it is an address")
	}
	labels := strings.Split(name, ".")
	last := labels[len(labels)-1]
	if len(name) > 253 || len(labels) < 2 || strings.Trim(last, "0123456789") == "" {
		return errors.New("it is no domain name")
	}
	for _, label := range labels {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return errors.New("it is no domain name")
		}
	}
	*d = Domain(name)
	return nil
}

// checkHTTPS refuses settings of the TLS port that do not go together, and reads what they name.
func (cfg *Config) checkHTTPS() error {
	files := cfg.TLSCertFile != "" || cfg.TLSKeyFile != ""
	acme := cfg.ACMEEmail != "" || cfg.ACMEDirectoryURL != "" || cfg.ACMECAFile != ""
	const kinds = "KUBEBYON_TLS_CERT_FILE and KUBEBYON_TLS_KEY_FILE, or KUBEBYON_ACME_EMAIL"
	switch {
	case cfg.HTTPSAddr == "" && (files || acme):
		return errors.New("KUBEBYON_HTTPS_ADDR: it is not set, and a certificate is for nothing without it; it accepts an address and a port, such as :8443")
	case cfg.HTTPSAddr == "":
		return nil
	case !files && !acme:
		return fmt.Errorf("KUBEBYON_HTTPS_ADDR: %.80q has no certificate; it accepts an address only beside %s", string(cfg.HTTPSAddr), kinds)
	case files && acme:
		return fmt.Errorf("KUBEBYON_TLS_CERT_FILE: the certificate cannot come from files and from an ACME server; it accepts one of the two: %s", kinds)
	case files:
		_, err := cfg.openFiles(nil)
		return err
	case cfg.ACMEEmail == "":
		return errors.New("KUBEBYON_ACME_EMAIL: it is not set, and the ACME server's other settings are for nothing without it; it accepts an e-mail address")
	case account.CheckEmail(cfg.ACMEEmail) != nil:
		return fmt.Errorf("KUBEBYON_ACME_EMAIL: %.80q is no e-mail address; it accepts one such as admin@example.com", cfg.ACMEEmail)
	case cfg.ConsoleDomain == "":
		return errors.New("KUBEBYON_CONSOLE_DOMAIN: it is not set, and an ACME server gives a certificate for a domain alone; it accepts one such as console.example.com")
	case cfg.EncryptionKeyFile == "":
		return errors.New("KUBEBYON_ENCRYPTION_KEY_FILE: it is not set, and the certificate's key is kept sealed; it accepts the path of a file with a line from: openssl rand -base64 32")
	}
	if cfg.ACMEDirectoryURL == "" {
		cfg.ACMEDirectoryURL = letsEncrypt
	}
	if u, err := url.Parse(cfg.ACMEDirectoryURL); err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
		return errors.New("KUBEBYON_ACME_DIRECTORY_URL: its value is no https:// URL; it accepts an ACME server's directory, such as " + letsEncrypt)
	}
	if cfg.ACMECAFile != "" {
		text, err := readText(cfg.ACMECAFile, 1<<20)
		cfg.acmeRoots = x509.NewCertPool()
		if err == nil && !cfg.acmeRoots.AppendCertsFromPEM([]byte(text)) {
			err = errors.New("holds no certificate")
		}
		if err != nil {
			return fmt.Errorf("KUBEBYON_ACME_CA_FILE: %.200q %w; it accepts the path of a PEM file with certificates", cfg.ACMECAFile, err)
		}
	}
	return nil
}

// openFiles fails with one line that names the variable of the file that is at fault.
func (cfg *Config) openFiles(log *slog.Logger) (*certificate.Files, error) {
	if cfg.TLSCertFile == "" {
		return nil, errors.New("KUBEBYON_TLS_CERT_FILE: it is not set beside KUBEBYON_TLS_KEY_FILE; it accepts the path of a PEM file with the certificate")
	}
	if cfg.TLSKeyFile == "" {
		return nil, errors.New("KUBEBYON_TLS_KEY_FILE: it is not set beside KUBEBYON_TLS_CERT_FILE; it accepts the path of a PEM file with the private key")
	}
	files, err := certificate.OpenFiles(certificate.FileOptions{Certificate: cfg.TLSCertFile, Key: cfg.TLSKeyFile, Domain: string(cfg.ConsoleDomain),
		Log: log, Every: filesEvery, Now: time.Now})
	var wrong *certificate.FileError
	switch {
	case errors.As(err, &wrong) && wrong.OfKey:
		return nil, fmt.Errorf("KUBEBYON_TLS_KEY_FILE: %w; it accepts the path of a PEM file with the certificate's private key", err)
	case err != nil:
		return nil, fmt.Errorf("KUBEBYON_TLS_CERT_FILE: %w; it accepts the path of a PEM file with the certificate and those that lead to its authority", err)
	}
	return files, nil
}

// https is the TLS port. nil: there is none.
type https struct {
	listener net.Listener
	config   *tls.Config
	files    *certificate.Files // or
	acme     *certificate.ACME
}

func newHTTPS(ctx context.Context, log *slog.Logger, cfg Config, deps Deps) (*https, error) {
	if cfg.HTTPSAddr == "" {
		return nil, nil //nolint:nilnil // none is as good as one
	}
	h := &https{listener: deps.TLS}
	if h.listener == nil {
		var err error
		if h.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", string(cfg.HTTPSAddr)); err != nil {
			return nil, fmt.Errorf("KUBEBYON_HTTPS_ADDR: %w", err)
		}
	}
	if cfg.TLSCertFile != "" {
		files, err := cfg.openFiles(log)
		if err != nil {
			h.close()
			return nil, err
		}
		if deps.Certificate > 0 {
			files.Every = deps.Certificate
		}
		h.files, h.config = files, files.TLS()
	} else {
		every := ordersEvery
		if deps.Certificate > 0 {
			every = deps.Certificate
		}
		h.acme = certificate.NewACME(certificate.ACMEOptions{Domain: string(cfg.ConsoleDomain), Email: cfg.ACMEEmail, Directory: cfg.ACMEDirectoryURL,
			Roots: cfg.acmeRoots, Keys: cfg.keys, Addr: h.listener.Addr(), Log: log, Every: every})
		h.config = h.acme.TLS()
	}
	h.listener = clientaddr.Trust(cfg.TrustedProxies).Listen(h.listener)
	return h, nil
}

func (h *https) close() {
	if h != nil {
		_ = h.listener.Close()
	}
}

func (h *https) serve(ctx context.Context, log *slog.Logger, handler http.Handler) error {
	if h == nil {
		return nil
	}
	return serve(ctx, log, h.listener, handler, h.config)
}

// watch keeps to the certificate's files.
func (h *https) watch(ctx context.Context) error {
	if h == nil || h.files == nil {
		return nil
	}
	return h.files.Run(ctx)
}

// order has the certificate from an ACME server, with what the replicas share in store.
func (h *https) order(ctx context.Context, store certificate.Store) error {
	if h == nil || h.acme == nil {
		return nil
	}
	return h.acme.Run(ctx, store)
}
