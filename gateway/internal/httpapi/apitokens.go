package httpapi

import (
	"net/http"
	"regexp"

	"github.com/kubebyon/kubebyon/gateway/internal/apitoken"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

var apiTokenIDForm = regexp.MustCompile(`^pat_[a-z0-9]{20}$`)

type apiTokensBody struct {
	APITokens []apitoken.Token `json:"api_tokens"`
}

func (s *Server) createAPIToken(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	body, err := decode[struct {
		Name       string   `json:"name"`
		Scopes     []string `json:"scopes"`
		ExpiresAt  *string  `json:"expires_at"`
		TTLSeconds *int64   `json:"ttl_seconds"`
	}](w, r)
	if err != nil {
		return err
	}
	value, made, err := id.Tokens.Make(r.Context(), callerOf(r).account.ID,
		apitoken.Wish{Name: body.Name, Scopes: body.Scopes, ExpiresAt: body.ExpiresAt, TTLSeconds: body.TTLSeconds})
	if err != nil {
		return err
	}
	concerns(r, made.ID)
	return writeJSON(w, http.StatusCreated, struct {
		Token    string         `json:"token"` // shown this once
		APIToken apitoken.Token `json:"api_token"`
	}{value, made})
}

func (s *Server) listAPITokens(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	return apiTokensOf(w, r, id, callerOf(r).account.ID)
}

func (s *Server) listAPITokensOf(w http.ResponseWriter, r *http.Request) error {
	id, userID, err := s.onUser(r)
	if err != nil {
		return err
	}
	return apiTokensOf(w, r, id, userID)
}

func apiTokensOf(w http.ResponseWriter, r *http.Request, id *Identity, userID string) error {
	found, err := id.Tokens.Of(r.Context(), userID)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, apiTokensBody{list(found)})
}

func (s *Server) revokeAPIToken(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	return revokeAPIToken(w, r, id, callerOf(r).account.ID)
}

func (s *Server) revokeAPITokenOf(w http.ResponseWriter, r *http.Request) error {
	id, userID, err := s.onUser(r)
	if err != nil {
		return err
	}
	return revokeAPIToken(w, r, id, userID)
}

func revokeAPIToken(w http.ResponseWriter, r *http.Request, id *Identity, userID string) error {
	tokenID := r.PathValue("api_token_id")
	if !apiTokenIDForm.MatchString(tokenID) {
		return fault.New(fault.NotFound, "api_token_not_found", "there is no such API token")
	}
	if err := id.Tokens.Revoke(r.Context(), userID, tokenID); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// revokeAPITokensOf succeeds for an account that has none.
func (s *Server) revokeAPITokensOf(w http.ResponseWriter, r *http.Request) error {
	id, userID, err := s.onUser(r)
	if err != nil {
		return err
	}
	if err := id.Tokens.RevokeAllOf(r.Context(), userID); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
