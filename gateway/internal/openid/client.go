// Package openid logs people in at an OpenID provider: the authorization code flow with PKCE. It must never put a code, a state,
// a token or a cookie into a log, a trace or an error, nor follow the provider's redirects.
package openid

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
)

const (
	// Patience is how long one answer of the provider may take, unless the options say otherwise.
	Patience = 5 * time.Second
	// maxAnswer bounds an answer of the provider, in bytes.
	maxAnswer = 256 << 10
	// fresh is how long the provider's description counts; its keys are read again whenever one is unknown.
	fresh = time.Hour
	// pause keeps a provider that is away from being asked with every request.
	pause = time.Second
)

// Options of a Client.
type Options struct {
	Issuer   string // as the provider spells it
	ClientID string
	Secret   telemetry.Secret
	Name     string           // what people know the provider by
	Now      func() time.Time // the clock
	Patience time.Duration    // zero: Patience
}

// Client speaks with one provider. It asks nothing before the first log-in, so that a provider that is away delays no start.
type Client struct {
	options   Options
	http      *http.Client
	transport *http.Transport
	known     atomic.Pointer[provider]
	turn      chan struct{} // who holds its one place discovers, and guards what is below
	failure   error
	failedAt  time.Time
}

// provider is what discovery found.
type provider struct {
	foundAt time.Time
	oidc    *oidc.Provider
	keys    oidc.KeySet
	oauth2  oauth2.Endpoint
	algs    []string
	namesIt bool // it promises iss in its answers (RFC 9207)
}

// New makes a Client. Close it.
func New(o Options) *Client {
	if o.Patience == 0 {
		o.Patience = Patience
	}
	transport := &http.Transport{
		DialContext:            (&net.Dialer{Timeout: o.Patience}).DialContext,
		TLSHandshakeTimeout:    o.Patience,
		ResponseHeaderTimeout:  o.Patience,
		MaxResponseHeaderBytes: 64 << 10,
		MaxConnsPerHost:        16, // strangers can make us ask
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        30 * time.Second,
		ForceAttemptHTTP2:      true,
	}
	return &Client{
		options: o, transport: transport, turn: make(chan struct{}, 1),
		http: &http.Client{
			Transport: whole{telemetry.Transport("openid", transport)}, Timeout: o.Patience,
			// A redirect would take the client's secret or a token elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Close ends idle connections.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Name is what people know the provider by.
func (c *Client) Name() string { return c.options.Name }

// Begin gives the address at the provider to send a browser to, and the cookie that it must bring back. It fails with unavailable
// (openid_unavailable) while the provider is away. returnTo is a LocalPath.
func (c *Client) Begin(ctx context.Context, redirectURI, returnTo string) (address, cookie string, err error) {
	p, err := c.provider(ctx)
	if err != nil {
		return "", "", err
	}
	f := newFlow(c.options.Now(), returnTo)
	return c.config(p, redirectURI).AuthCodeURL(f.state(), oidc.Nonce(f.nonce()), oauth2.S256ChallengeOption(f.verifier())), f.cookie(), nil
}

func (c *Client) config(p *provider, redirectURI string) *oauth2.Config {
	return &oauth2.Config{
		ClientID: c.options.ClientID, ClientSecret: string(c.options.Secret), Endpoint: p.oauth2, RedirectURL: redirectURI,
		Scopes: []string{oidc.ScopeOpenID, "email", "profile"},
	}
}

// provider gives what is known of the provider, and asks it where that is nothing, or old.
func (c *Client) provider(ctx context.Context) (*provider, error) {
	isFresh := func(p *provider) bool { return p != nil && c.options.Now().Sub(p.foundAt) < fresh }
	if p := c.known.Load(); isFresh(p) {
		return p, nil
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, unavailable(ctx.Err())
	}
	old := c.known.Load()
	if isFresh(old) {
		return old, nil // the one before us found it
	}
	if c.failure == nil || c.options.Now().Sub(c.failedAt) >= pause {
		found, err := c.discover(ctx)
		c.failure, c.failedAt = err, c.options.Now()
		if err == nil {
			c.known.Store(found)
			return found, nil
		}
	}
	if old != nil {
		return old, nil // better than none, while the provider is away
	}
	return nil, unavailable(c.failure)
}

// discover is not cancelled with ctx: others wait for what it finds.
func (c *Client) discover(ctx context.Context) (*provider, error) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.options.Patience)
	defer cancel()
	found, err := oidc.NewProvider(oidc.ClientContext(bounded, c.http), c.options.Issuer)
	if err != nil {
		return nil, brief(err)
	}
	var says struct {
		Keys    string   `json:"jwks_uri"`
		Info    string   `json:"userinfo_endpoint"`
		Methods []string `json:"token_endpoint_auth_methods_supported"`
		Algs    []string `json:"id_token_signing_alg_values_supported"`
		NamesIt bool     `json:"authorization_response_iss_parameter_supported"`
	}
	if err := found.Claims(&says); err != nil {
		return nil, errors.New("the provider's description has a field of another type")
	}
	endpoint := found.Endpoint()
	needed := []string{endpoint.AuthURL, endpoint.TokenURL, says.Keys}
	if says.Info != "" {
		needed = append(needed, says.Info)
	}
	for _, address := range needed {
		if CheckURL(address) != nil {
			return nil, errors.New("the provider's description lacks an address, or names one that is not https")
		}
	}
	endpoint.AuthStyle = oauth2.AuthStyleInHeader
	if len(says.Methods) > 0 && !slices.Contains(says.Methods, "client_secret_basic") {
		endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	return &provider{
		foundAt: c.options.Now(), oidc: found, oauth2: endpoint, namesIt: says.NamesIt, algs: signed(says.Algs),
		// The set outlives this request, its time limit and its trace.
		keys: oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), c.http), says.Keys),
	}, nil
}

// signed leaves what only the holder of a private key can sign with: none, and what a client's secret signs, prove nothing here.
func signed(algs []string) (kept []string) {
	for _, alg := range []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA} {
		if slices.Contains(algs, alg) {
			kept = append(kept, alg)
		}
	}
	if len(kept) == 0 {
		return []string{oidc.RS256} // every provider has it
	}
	return kept
}

// CheckURL says what is wrong with an address of a provider: it must be https, or be on this machine.
func CheckURL(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || u.User != nil || u.Fragment != "" || u.Opaque != "" {
		return errors.New("is no URL with a host")
	}
	ip := net.ParseIP(u.Hostname())
	if loopback := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback(); u.Scheme != "https" && (u.Scheme != "http" || !loopback) {
		return errors.New("is not https")
	}
	return nil
}

func unavailable(cause error) error {
	return fault.New(fault.Unavailable, "openid_unavailable", "the OpenID provider cannot be used at the moment").
		Do("try again in a minute, or log in with a password").Because(cause)
}

// brief keeps the provider's own words, which may be long or anything at all, out of the log.
func brief(err error) error {
	var network *url.Error
	var other *oidc.IssuerMismatchError
	switch {
	case errors.As(err, &network), errors.As(err, &other):
		return err
	case strings.HasPrefix(err.Error(), "oidc: "):
		return errors.New(firstRunes(err.Error(), 200))
	default:
		return errors.New("the provider's answer is no description of one")
	}
}

func firstRunes(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}

var errTooLarge = errors.New("the provider's answer is too large")

// whole reads each answer at once, up to maxAnswer, so that one that is cut off, endless or our peer's own failure (5xx) is an
// error of the request: the libraries above turn errors of reading into text.
type whole struct{ next http.RoundTripper }

func (t whole) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode >= http.StatusInternalServerError || res.StatusCode == http.StatusTooManyRequests {
		return nil, errors.New("the provider answered " + strconv.Itoa(res.StatusCode))
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxAnswer {
		return nil, errTooLarge
	}
	res.Body = io.NopCloser(bytes.NewReader(text))
	return res, nil
}
