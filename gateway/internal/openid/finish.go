package openid

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// questions is how often one log-in asks the provider: for tokens, keys and the user info.
const questions = 3

// Answer is what the provider sent the browser back with.
type Answer struct{ Code, State, Issuer, Error string }

// Person is who the provider says it is.
type Person struct {
	Issuer  string
	Subject string
	Email   string // verified by the provider, and plain; as account keeps it
}

// Finish verifies the answer against the browser's cookie, and asks the provider who it is. It fails with
//
//	invalid          openid_state_wrong, openid_issuer_wrong, openid_code_missing, openid_code_refused
//	unauthenticated  openid_token_invalid
//	forbidden        openid_denied, openid_refused, openid_email_unverified, openid_email_invalid
//	unavailable      openid_unavailable, openid_client_refused
func (c *Client) Finish(ctx context.Context, redirectURI, cookie string, a Answer) (who Person, returnTo string, err error) {
	f, ok := parseFlow(cookie, c.options.Now())
	// Before anything else, so that a link of somebody else's making gets nothing done.
	if !ok || !same(a.State, f.state()) {
		return Person{}, "", fault.New(fault.Invalid, "openid_state_wrong", "this log-in was not started in this browser, or took longer than %.0f minutes", FlowLife.Minutes()).
			In("state").Do(again)
	}
	p, err := c.provider(ctx)
	if err != nil {
		return Person{}, "", err
	}
	if a.Issuer != "" && a.Issuer != c.options.Issuer || a.Issuer == "" && p.namesIt {
		return Person{}, "", fault.New(fault.Invalid, "openid_issuer_wrong", "the answer is not from the provider that was asked").In("iss").Do(again)
	}
	if a.Error != "" {
		return Person{}, "", refusal(a.Error)
	}
	if a.Code == "" || len(a.Code) > 4096 {
		return Person{}, "", fault.New(fault.Invalid, "openid_code_missing", "the provider's answer has no code, or one that is too long").In("code").Do(again)
	}
	bounded, cancel := context.WithTimeout(ctx, questions*c.options.Patience)
	defer cancel()
	bounded = oidc.ClientContext(bounded, c.http)
	tokens, err := c.config(p, redirectURI).Exchange(bounded, a.Code, oauth2.VerifierOption(f.verifier()))
	if err != nil {
		return Person{}, "", notExchanged(err)
	}
	who, err = c.verify(bounded, p, tokens, f.nonce())
	return who, f.returnTo, err
}

const again = "start the log-in again"

// refusal translates the provider's error. Only known codes are repeated: the answer came through a browser.
func refusal(code string) error {
	switch code {
	case "access_denied", "login_required", "interaction_required", "consent_required", "account_selection_required":
		return fault.New(fault.Forbidden, "openid_denied", "the log-in was not completed at the provider (%s)", code).Do(again)
	case "server_error", "temporarily_unavailable":
		return unavailable(errors.New("the provider answered " + code))
	case "invalid_request", "unauthorized_client", "unsupported_response_type", "invalid_scope":
	default:
		code = "another error"
	}
	return fault.New(fault.Forbidden, "openid_refused", "the provider refused the log-in (%s)", code).
		Do("have the operator check the client's registration at the provider")
}

// notExchanged never keeps the provider's words: they may repeat the code.
func notExchanged(err error) error {
	var refused *oauth2.RetrieveError
	if !errors.As(err, &refused) {
		if away(err) {
			return unavailable(err)
		}
		return invalidToken("the provider's answer has no tokens")
	}
	switch {
	case refused.ErrorCode == "invalid_client", refused.ErrorCode == "unauthorized_client", refused.Response.StatusCode == http.StatusUnauthorized:
		return fault.New(fault.Unavailable, "openid_client_refused", "the provider does not accept this gateway's client").
			Do("have the operator check KUBEBYON_OIDC_CLIENT_ID and KUBEBYON_OIDC_CLIENT_SECRET_FILE")
	default:
		return fault.New(fault.Invalid, "openid_code_refused", "the provider does not accept the code: it is used, expired or somebody else's").In("code").Do(again)
	}
}

// away says whether err means that the provider did not answer, as whole understands it.
func away(err error) bool {
	var network *url.Error
	return errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

func invalidToken(why string) error {
	return fault.New(fault.Unauthenticated, "openid_token_invalid", "the provider's answer does not prove who you are").
		Do("start the log-in again; if it stays, give the operator the trace id").Because(errors.New(firstRunes(why, 200)))
}

// claims of an ID token or of the user info. Some providers send the truth of email_verified as text.
type claims struct {
	Email    string          `json:"email"`
	Verified json.RawMessage `json:"email_verified"`
	Party    string          `json:"azp"`
}

func (c *Client) verify(ctx context.Context, p *provider, tokens *oauth2.Token, nonce string) (Person, error) {
	raw, _ := tokens.Extra("id_token").(string)
	if raw == "" {
		return Person{}, invalidToken("there is no ID token")
	}
	keys := &witness{KeySet: p.keys}
	verifier := oidc.NewVerifier(c.options.Issuer, keys, &oidc.Config{
		ClientID: c.options.ClientID, SupportedSigningAlgs: p.algs, Now: c.options.Now,
	})
	token, err := verifier.Verify(ctx, raw)
	switch {
	case err != nil && away(keys.err):
		return Person{}, unavailable(keys.err)
	case err != nil:
		return Person{}, invalidToken(err.Error()) // it names claims, never the token
	case !same(token.Nonce, nonce):
		return Person{}, invalidToken("the nonce is another one")
	case token.Expiry.Equal(time.Time{}) || token.Expiry.Unix() == 0:
		return Person{}, invalidToken("it has no expiry")
	case !plainSubject(token.Subject):
		return Person{}, invalidToken("the subject is empty, longer than 255 characters or not plain ASCII")
	}
	var says claims
	if err := token.Claims(&says); err != nil {
		return Person{}, invalidToken("a claim has another type")
	}
	if says.Party != "" && says.Party != c.options.ClientID || says.Party == "" && len(token.Audience) > 1 {
		return Person{}, invalidToken("it is for another party (azp)")
	}
	if token.AccessTokenHash != "" && token.VerifyAccessToken(tokens.AccessToken) != nil {
		return Person{}, invalidToken("it is for another access token (at_hash)")
	}
	if says.Email == "" && p.oidc.UserInfoEndpoint() != "" {
		if says, err = userInfo(ctx, p, tokens, token.Subject); err != nil {
			return Person{}, err
		}
	}
	if verified := strings.Trim(string(says.Verified), `"`); verified != "true" {
		return Person{}, fault.New(fault.Forbidden, "openid_email_unverified", "the provider has not verified your e-mail address").
			Do("verify the address at the provider, then log in again")
	}
	if account.CheckEmail(says.Email) != nil {
		return Person{}, fault.New(fault.Forbidden, "openid_email_invalid", "the provider gives an e-mail address that is not of the form name@example.com").
			Do("set a plain address at the provider, then log in again")
	}
	return Person{Issuer: c.options.Issuer, Subject: token.Subject, Email: account.Normalise(says.Email)}, nil
}

// userInfo asks for what a provider leaves out of its ID tokens.
func userInfo(ctx context.Context, p *provider, tokens *oauth2.Token, subject string) (says claims, err error) {
	info, err := p.oidc.UserInfo(ctx, oauth2.StaticTokenSource(tokens))
	switch {
	case err != nil && away(err):
		return claims{}, unavailable(err)
	case err != nil:
		return claims{}, invalidToken("the user info was refused, or cannot be read")
	case info.Subject != subject:
		return claims{}, invalidToken("the user info is somebody else's")
	}
	if err := info.Claims(&says); err != nil {
		return claims{}, invalidToken("a claim of the user info has another type")
	}
	return says, nil
}

func plainSubject(subject string) bool {
	if subject == "" || len(subject) > 255 {
		return false
	}
	for _, b := range []byte(subject) {
		if b < ' ' || b > '~' {
			return false
		}
	}
	return true
}

// witness keeps why a signature was not verified: the library turns a provider that is away into text.
type witness struct {
	oidc.KeySet
	err error
}

func (w *witness) VerifySignature(ctx context.Context, jwt string) (payload []byte, err error) {
	payload, w.err = w.KeySet.VerifySignature(ctx, jwt)
	return payload, w.err
}
