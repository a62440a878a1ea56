// Package openidtest runs a real OpenID provider for tests: discovery, the authorization code flow, PKCE, signed tokens and
// keys that rotate. It must never be part of a process.
package openidtest

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// The one client that the provider knows.
const (
	ClientID = "kubebyon"
	Secret   = "canary-client-secret-5d7e"
)

// Person is who logs in at the provider.
type Person struct {
	Subject, Email string
	Unverified     bool
}

// Key signs tokens.
type Key struct {
	KeyID   string
	Alg     jose.SignatureAlgorithm
	Private crypto.Signer
}

// Provider is one. Its fields may be set while it runs, under Set.
type Provider struct {
	URL string // its issuer

	Person       Person
	RedirectURIs []string
	Refuse       string                                            // the error that people are sent back with
	InfoOnly     bool                                              // the address is left out of ID tokens
	Describe     func(description map[string]any)                  // changes its description
	Forge        func(claims map[string]any, k Key) string         // replaces the ID token
	Answer       func(w http.ResponseWriter, r *http.Request) bool // answers in its place, where it says so

	mu       sync.Mutex
	keys     []Key // the last one signs
	requests map[string]*request
	codes    map[string]string
	tokens   map[string]string // subjects by access token
	asked    []string
	handler  http.Handler
	server   *httptest.Server
}

// Start brings a provider up until the test ends.
func Start(tb testing.TB) *Provider {
	tb.Helper()
	listener, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Provider{
		URL: "http://" + listener.Addr().String(), Person: Person{Subject: "subject-1", Email: "person@example.com"},
		requests: map[string]*request{}, codes: map[string]string{}, tokens: map[string]string{},
	}
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		tb.Fatal(err)
	}
	p.keys = []Key{{"key-1", jose.RS256, private}}
	config := &op.Config{CodeMethodS256: true, SupportedScopes: []string{"openid", "email", "profile"}}
	_, _ = rand.Read(config.CryptoKey[:])
	provider, err := op.NewProvider(config, storage{p}, op.StaticIssuer(p.URL), op.WithAllowInsecure())
	if err != nil {
		tb.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", provider)
	mux.HandleFunc("/log-in-here", p.logIn)
	p.handler = mux
	p.serve(listener)
	tb.Cleanup(p.Stop)
	return p
}

func (p *Provider) serve(listener net.Listener) {
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(p.answer))
	_ = p.server.Listener.Close()
	p.server.Listener = listener
	p.server.Start()
}

// Stop takes it down; Restart brings it back at the same address.
func (p *Provider) Stop() {
	p.server.CloseClientConnections()
	p.server.Close()
}

// Restart brings it back after Stop.
func (p *Provider) Restart(tb testing.TB) {
	tb.Helper()
	listener, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", strings.TrimPrefix(p.URL, "http://"))
	if err != nil {
		tb.Fatal(err)
	}
	p.serve(listener)
}

// Set changes it between requests.
func (p *Provider) Set(change func(*Provider)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}

// Rotate makes a new key of another kind sign; the old one is forgotten.
func (p *Provider) Rotate(tb testing.TB) {
	tb.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	p.Set(func(p *Provider) { p.keys = []Key{{"key-" + rand.Text(), jose.ES256, private}} })
}

// Asked gives the paths of the requests so far.
func (p *Provider) Asked() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

// Sign makes a token of claims.
func (k Key) Sign(claims map[string]any) string {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: k.Alg, Key: jose.JSONWebKey{Key: k.Private, KeyID: k.KeyID}}, nil)
	if err != nil {
		return err.Error()
	}
	text, _ := json.Marshal(claims)
	signed, err := signer.Sign(text)
	if err != nil {
		return err.Error()
	}
	raw, _ := signed.CompactSerialize()
	return raw
}

func (p *Provider) answer(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked = append(p.asked, r.URL.Path)
	instead, describe, forge := p.Answer, p.Describe, p.Forge
	p.mu.Unlock()
	switch {
	case instead != nil && instead(w, r):
	case describe != nil && strings.HasPrefix(r.URL.Path, "/.well-known/"):
		p.rewrite(w, r, describe)
	case forge != nil && r.URL.Path == "/oauth/token":
		p.rewrite(w, r, func(body map[string]any) {
			if raw, ok := body["id_token"].(string); ok {
				signed, err := jose.ParseSignedCompact(raw, []jose.SignatureAlgorithm{jose.RS256, jose.ES256})
				if err != nil {
					return
				}
				claims := map[string]any{}
				_ = json.Unmarshal(signed.UnsafePayloadWithoutVerification(), &claims)
				body["id_token"] = forge(claims, p.key())
			}
		})
	default:
		p.handler.ServeHTTP(w, r)
	}
}

func (p *Provider) rewrite(w http.ResponseWriter, r *http.Request, change func(map[string]any)) {
	recorder := httptest.NewRecorder()
	p.handler.ServeHTTP(recorder, r)
	body := map[string]any{}
	text := recorder.Body.Bytes()
	if json.Unmarshal(text, &body) == nil {
		change(body)
		text, _ = json.Marshal(body)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(recorder.Code)
	_, _ = io.Copy(w, bytes.NewReader(text))
}

func (p *Provider) key() Key {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keys[len(p.keys)-1]
}

// logIn is the provider's form, filled in at once.
func (p *Provider) logIn(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked, ok := p.requests[r.URL.Query().Get("id")]
	if !ok {
		http.Error(w, "no such request", http.StatusBadRequest)
		return
	}
	if p.Refuse != "" {
		back, _ := url.Parse(asked.RedirectURI)
		back.RawQuery = url.Values{"error": {p.Refuse}, "error_description": {"<b>canary-description</b>"}, "state": {asked.State}}.Encode()
		http.Redirect(w, r, back.String(), http.StatusFound)
		return
	}
	asked.subject, asked.done = p.Person, true
	http.Redirect(w, r, p.URL+"/authorize/callback?id="+asked.id, http.StatusFound)
}

// request is an authorization under way.
type request struct {
	*oidc.AuthRequest
	id      string
	subject Person
	done    bool
}

func (q *request) GetID() string                      { return q.id }
func (q *request) GetACR() string                     { return "" }
func (q *request) GetAMR() []string                   { return nil }
func (q *request) GetAudience() []string              { return []string{q.ClientID} }
func (q *request) GetAuthTime() time.Time             { return time.Now() }
func (q *request) GetClientID() string                { return q.ClientID }
func (q *request) GetNonce() string                   { return q.Nonce }
func (q *request) GetRedirectURI() string             { return q.RedirectURI }
func (q *request) GetResponseType() oidc.ResponseType { return q.ResponseType }
func (q *request) GetResponseMode() oidc.ResponseMode { return q.ResponseMode }
func (q *request) GetScopes() []string                { return q.Scopes }
func (q *request) GetState() string                   { return q.State }
func (q *request) GetSubject() string                 { return q.subject.Subject }
func (q *request) Done() bool                         { return q.done }
func (q *request) GetCodeChallenge() *oidc.CodeChallenge {
	if q.CodeChallenge == "" {
		return nil
	}
	return &oidc.CodeChallenge{Challenge: q.CodeChallenge, Method: q.CodeChallengeMethod}
}

type client struct {
	uris     []string
	infoOnly bool
	issuer   string
}

func (c client) GetID() string                       { return ClientID }
func (c client) RedirectURIs() []string              { return c.uris }
func (c client) PostLogoutRedirectURIs() []string    { return nil }
func (c client) ApplicationType() op.ApplicationType { return op.ApplicationTypeWeb }
func (c client) AuthMethod() oidc.AuthMethod         { return oidc.AuthMethodBasic }
func (c client) ResponseTypes() []oidc.ResponseType {
	return []oidc.ResponseType{oidc.ResponseTypeCode}
}
func (c client) GrantTypes() []oidc.GrantType         { return []oidc.GrantType{oidc.GrantTypeCode} }
func (c client) LoginURL(id string) string            { return c.issuer + "/log-in-here?id=" + id }
func (c client) AccessTokenType() op.AccessTokenType  { return op.AccessTokenTypeBearer }
func (c client) IDTokenLifetime() time.Duration       { return 3 * time.Hour }
func (c client) DevMode() bool                        { return false }
func (c client) IsScopeAllowed(string) bool           { return false }
func (c client) IDTokenUserinfoClaimsAssertion() bool { return !c.infoOnly }
func (c client) ClockSkew() time.Duration             { return 0 }
func (c client) RestrictAdditionalIdTokenScopes() func([]string) []string {
	return func(scopes []string) []string { return scopes }
}
func (c client) RestrictAdditionalAccessTokenScopes() func([]string) []string {
	return func(scopes []string) []string { return scopes }
}

// storage is the provider's memory.
type storage struct{ p *Provider }

var errAbsent = errors.New("there is no such record")

func (s storage) CreateAuthRequest(_ context.Context, asked *oidc.AuthRequest, _ string) (op.AuthRequest, error) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	made := &request{AuthRequest: asked, id: rand.Text()}
	s.p.requests[made.id] = made
	return made, nil
}

func (s storage) AuthRequestByID(_ context.Context, id string) (op.AuthRequest, error) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if found, ok := s.p.requests[id]; ok {
		return found, nil
	}
	return nil, errAbsent
}

func (s storage) AuthRequestByCode(ctx context.Context, code string) (op.AuthRequest, error) {
	s.p.mu.Lock()
	id := s.p.codes[code]
	s.p.mu.Unlock()
	return s.AuthRequestByID(ctx, id)
}

func (s storage) SaveAuthCode(_ context.Context, id, code string) error {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.p.codes[code] = id
	return nil
}

func (s storage) DeleteAuthRequest(_ context.Context, id string) error {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	delete(s.p.requests, id)
	return nil
}

func (s storage) CreateAccessToken(_ context.Context, r op.TokenRequest) (string, time.Time, error) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	id := rand.Text()
	s.p.tokens[id] = r.GetSubject()
	return id, time.Now().Add(time.Hour), nil
}

func (s storage) CreateAccessAndRefreshTokens(context.Context, op.TokenRequest, string) (access, refresh string, ends time.Time, err error) {
	return "", "", time.Time{}, errAbsent
}

func (s storage) TokenRequestByRefreshToken(context.Context, string) (op.RefreshTokenRequest, error) {
	return nil, op.ErrInvalidRefreshToken
}
func (s storage) TerminateSession(context.Context, string, string) error { return nil }
func (s storage) RevokeToken(context.Context, string, string, string) *oidc.Error {
	return oidc.ErrInvalidRequest()
}
func (s storage) GetRefreshTokenInfo(context.Context, string, string) (user, token string, err error) {
	return "", "", op.ErrInvalidRefreshToken
}

func (s storage) SigningKey(context.Context) (op.SigningKey, error) { return private(s.p.key()), nil }
func (s storage) SignatureAlgorithms(context.Context) ([]jose.SignatureAlgorithm, error) {
	return []jose.SignatureAlgorithm{jose.RS256, jose.ES256}, nil
}

func (s storage) KeySet(context.Context) (keys []op.Key, err error) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	for _, k := range s.p.keys {
		keys = append(keys, public(k))
	}
	return keys, nil
}

type private Key

func (k private) SignatureAlgorithm() jose.SignatureAlgorithm { return k.Alg }
func (k private) Key() any                                    { return k.Private }
func (k private) ID() string                                  { return k.KeyID }

type public Key

func (k public) Algorithm() jose.SignatureAlgorithm { return k.Alg }
func (k public) Key() any                           { return k.Private.Public() }
func (k public) ID() string                         { return k.KeyID }
func (k public) Use() string                        { return "sig" }

func (s storage) GetClientByClientID(_ context.Context, id string) (op.Client, error) {
	if id != ClientID {
		return nil, errAbsent
	}
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return client{slices.Clone(s.p.RedirectURIs), s.p.InfoOnly, s.p.URL}, nil
}

func (s storage) AuthorizeClientIDSecret(_ context.Context, id, secret string) error {
	if id != ClientID || secret != Secret {
		return errAbsent
	}
	return nil
}

func (s storage) SetUserinfoFromScopes(context.Context, *oidc.UserInfo, string, string, []string) error {
	return nil
}

func (s storage) SetUserinfoFromRequest(_ context.Context, info *oidc.UserInfo, r op.IDTokenRequest, scopes []string) error {
	asked, ok := r.(*request)
	if !ok {
		return errAbsent
	}
	info.Subject = asked.subject.Subject
	if slices.Contains(scopes, "email") {
		info.Email, info.EmailVerified = asked.subject.Email, oidc.Bool(!asked.subject.Unverified)
	}
	return nil
}

func (s storage) SetUserinfoFromToken(_ context.Context, info *oidc.UserInfo, token, subject, _ string) error {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.p.tokens[token] != subject {
		return errAbsent
	}
	info.Subject, info.Email, info.EmailVerified = s.p.Person.Subject, s.p.Person.Email, oidc.Bool(!s.p.Person.Unverified)
	return nil
}

func (s storage) SetIntrospectionFromToken(context.Context, *oidc.IntrospectionResponse, string, string, string) error {
	return errAbsent
}
func (s storage) GetPrivateClaimsFromScopes(context.Context, string, string, []string) (map[string]any, error) {
	return nil, nil
}
func (s storage) GetKeyByIDAndClientID(context.Context, string, string) (*jose.JSONWebKey, error) {
	return nil, errAbsent
}
func (s storage) ValidateJWTProfileScopes(_ context.Context, _ string, scopes []string) ([]string, error) {
	return scopes, nil
}
func (s storage) Health(context.Context) error { return nil }
