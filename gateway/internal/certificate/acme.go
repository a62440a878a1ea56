package certificate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
)

const (
	// unheard is when an ACME server that did not answer is asked again, at first, and refused is when one that did not want to; both
	// double up to mostWait. A server counts what it refuses, and refuses more to who asks too often.
	unheard = 5 * time.Second
	refused = 2 * time.Minute
	// refusedOnce is sooner: at a start the edge, through which the server looks for us, may be a moment behind.
	refusedOnce = 5 * time.Second
	mostWait    = time.Hour
	// never is for the clocks of what is not used.
	never = 100 * 365 * 24 * time.Hour
)

// ACMEOptions say whose certificate it is, and who gives it.
type ACMEOptions struct {
	Domain    string
	Email     string         // of the account at the server
	Directory string         // the server, https
	Roots     *x509.CertPool // who may sign the server's own certificate; nil: whom the system trusts
	Keys      Keys
	Addr      net.Addr // of the TLS listener, which answers challenges
	Log       *slog.Logger
	Every     time.Duration // how often the certificate is looked at, here and in the store
}

// ACME is a certificate that an ACME server gives for the domain (RFC 8555), proved by TLS-ALPN-01 on the very listener that shows
// it. All replicas that share a Store have the same one: one orders it, and each answers the server's challenges.
type ACME struct {
	ACMEOptions
	current    atomic.Pointer[tls.Certificate]
	challenges atomic.Pointer[certmagic.Config]
}

// NewACME has no certificate until Run has one.
func NewACME(o ACMEOptions) *ACME { return &ACME{ACMEOptions: o} }

// TLS is for a listener. Until there is a certificate handshakes fail.
func (a *ACME) TLS() *tls.Config {
	config := base()
	config.NextProtos = append(config.NextProtos, acmeProtocol)
	config.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if len(hello.SupportedProtos) == 1 && hello.SupportedProtos[0] == acmeProtocol {
			// Nothing is looked up for names that nobody has ordered a certificate for.
			if config := a.challenges.Load(); config != nil && hello.ServerName == a.Domain {
				return config.GetCertificate(hello)
			}
			return nil, errors.New("there is no challenge for this name")
		}
		if found := a.current.Load(); found != nil {
			return found, nil
		}
		return nil, errors.New("there is no certificate yet")
	}
	return config
}

// Run has a certificate, and a newer one in time, until ctx ends. While the server does not give one it is asked again, ever less
// often, and the last certificate stays.
func (a *ACME) Run(ctx context.Context, store Store) error {
	shared := NewStorage(store, a.Keys, a.Log)
	defer shared.Close()
	zap := zapTo(a.Log)
	var idle *certmagic.Config
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert:   func(certmagic.Certificate) (*certmagic.Config, error) { return idle, nil },
		RenewCheckInterval: a.Every, OCSPCheckInterval: never, Logger: zap,
	})
	defer cache.Stop()
	// The cache's own maintenance leaves certificates of such a configuration alone: what is due is done below, where it is waited for.
	idle = certmagic.New(cache, certmagic.Config{Storage: shared, Logger: zap, OnDemand: new(certmagic.OnDemandConfig)})
	config := certmagic.New(cache, certmagic.Config{Storage: shared, Logger: zap, OCSP: certmagic.OCSPConfig{DisableStapling: true}})
	host, port, err := net.SplitHostPort(a.Addr.String())
	if err != nil {
		return err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	config.Issuers = []certmagic.Issuer{certmagic.NewACMEIssuer(config, certmagic.ACMEIssuer{
		CA: a.Directory, TestCA: a.Directory, Email: a.Email, Agreed: true, TrustedRoots: a.Roots, Logger: zap,
		DisableHTTPChallenge: true, ListenHost: host, AltTLSALPNPort: number, // where our own listener is: it opens no other
	})}
	a.challenges.Store(config)

	var wait, failing time.Duration
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		// The certificate is read again each time: another replica may have renewed it.
		cache.RemoveManaged([]certmagic.SubjectIssuer{{Subject: a.Domain}})
		err := config.ManageSync(ctx, []string{a.Domain})
		a.take(ctx, cache)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			wait, failing = a.Every, 0
		default:
			failing = again(failing, err)
			wait = failing
			a.complain(ctx, err, wait)
		}
	}
}

// take shows the newest certificate that there is, also where a newer one could not be had.
func (a *ACME) take(ctx context.Context, cache *certmagic.Cache) {
	var newest *tls.Certificate
	for _, found := range cache.AllMatchingCertificates(a.Domain) {
		if newest == nil || found.Leaf.NotAfter.After(newest.Leaf.NotAfter) {
			newest = &found.Certificate
		}
	}
	if newest == nil {
		return
	}
	if old := a.current.Swap(newest); old == nil || !old.Leaf.Equal(newest.Leaf) {
		a.Log.InfoContext(ctx, "certificate from the ACME server in use", described(newest.Leaf)...)
	}
}

// again is when to try again after err, where the last wait of a row of failures was wait.
func again(wait time.Duration, err error) time.Duration {
	first := unheard
	if problem := (acme.Problem{}); errors.As(err, &problem) && problem.Status != 0 {
		if first = refused; wait == 0 {
			return refusedOnce
		}
	}
	return min(max(first, 2*wait), mostWait)
}

func (a *ACME) complain(ctx context.Context, err error, wait time.Duration) {
	attributes := []any{slog.String("domain", a.Domain), slog.String("directory", a.Directory), slog.Duration("again_in", wait), slog.String("error", err.Error())}
	old := a.current.Load()
	if old == nil {
		a.Log.WarnContext(ctx, "there is no certificate yet: the ACME server gave none", attributes...)
		return
	}
	level := slog.LevelWarn
	if soon(old.Leaf, time.Now()) {
		attributes = append(attributes, slog.Time("expires", old.Leaf.NotAfter.UTC()))
		if time.Now().After(old.Leaf.NotAfter) {
			level = slog.LevelError
		}
	}
	a.Log.Log(ctx, level, "the certificate could not be renewed; the last one stays", attributes...)
}
