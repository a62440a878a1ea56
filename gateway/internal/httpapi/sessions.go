package httpapi

import (
	"net/http"
	"regexp"
	"time"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

var sessionIDForm = regexp.MustCompile(`^ses_[a-z0-9]{20}$`)

type sessionRecord struct {
	ID            string    `json:"id"`
	CreatedAt     time.Time `json:"created_at"`
	LastSeenAt    time.Time `json:"last_seen_at"` // to the minute
	ExpiresAt     time.Time `json:"expires_at"`   // whatever happens; earlier where it is not used
	ClientAddress string    `json:"client_address"`
	UserAgent     string    `json:"user_agent"`
	Current       bool      `json:"current"`
}

type sessionsBody struct {
	Sessions []sessionRecord `json:"sessions"`
}

func (s *Server) listSessions(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	mine := callerOf(r)
	found, err := id.Sessions.Of(r.Context(), mine.account.ID)
	if err != nil {
		return err
	}
	body := sessionsBody{Sessions: make([]sessionRecord, 0, len(found))}
	for _, one := range found {
		record := sessionRecord{ID: one.ID, CreatedAt: one.CreatedAt.UTC(), LastSeenAt: one.LastSeenAt.UTC(), ExpiresAt: one.ExpiresAt.UTC(),
			UserAgent: one.Client.UserAgent, Current: one.ID == mine.session.ID}
		if one.Client.Address.IsValid() {
			record.ClientAddress = one.Client.Address.String()
		}
		body.Sessions = append(body.Sessions, record)
	}
	return writeJSON(w, http.StatusOK, body)
}

func (s *Server) closeSession(w http.ResponseWriter, r *http.Request) error {
	sessionID := r.PathValue("session_id")
	if !sessionIDForm.MatchString(sessionID) {
		return fault.New(fault.NotFound, "session_not_found", "there is no such session")
	}
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	mine := callerOf(r)
	if err := id.Sessions.CloseOneOf(r.Context(), mine.account.ID, sessionID); err != nil {
		return err
	}
	if sessionID == mine.session.ID {
		s.dropCookie(w, r)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// logOutEverywhere ends this session too, and the API tokens where that is asked for. They go first: while one is left, the
// session is there to try again with.
func (s *Server) logOutEverywhere(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	body, err := decodeOptional[struct {
		APITokens bool `json:"api_tokens"`
	}](w, r)
	if err != nil {
		return err
	}
	mine := callerOf(r).account.ID
	if body.APITokens {
		if err := id.Tokens.RevokeAllOf(r.Context(), mine); err != nil {
			return err
		}
	}
	if err := id.Sessions.CloseAllOf(r.Context(), mine, ""); err != nil {
		return err
	}
	s.dropCookie(w, r)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// closeSessionsOf succeeds for an account that has none.
func (s *Server) closeSessionsOf(w http.ResponseWriter, r *http.Request) error {
	id, userID, err := s.onUser(r)
	if err != nil {
		return err
	}
	if err := id.Sessions.CloseAllOf(r.Context(), userID, ""); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// onUser gives the path's account, which exists. An id of another form goes nowhere.
func (s *Server) onUser(r *http.Request) (*Identity, string, error) {
	userID := r.PathValue("user_id")
	if !userIDForm.MatchString(userID) {
		return nil, "", fault.New(fault.NotFound, "user_not_found", "there is no such user")
	}
	id, err := s.withIdentity()
	if err != nil {
		return nil, "", err
	}
	_, err = id.Users.Get(r.Context(), userID)
	return id, userID, err
}
