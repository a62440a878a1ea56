package httpapi

import (
	"net/http"
	"strconv"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

type (
	userBody struct {
		User account.User `json:"user"`
	}
	usersBody struct {
		Users      []account.User `json:"users"`
		NextCursor string         `json:"next_cursor,omitempty"`
	}
)

// userID gives the path's id. One of another form names nobody, and goes nowhere.
func userID(r *http.Request) (string, error) {
	id := r.PathValue("user_id")
	if !userIDForm.MatchString(id) {
		return "", fault.New(fault.NotFound, "user_not_found", "there is no such user")
	}
	return id, nil
}

func (s *Server) listUsers(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	asked, err := query(r)
	if err != nil {
		return err
	}
	limit := account.DefaultUsers
	if text := asked.Get("limit"); asked.Has("limit") {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > account.MaxUsers {
			return fault.New(fault.Invalid, "limit_invalid", "limit must be a whole number from 1 to %d", account.MaxUsers).In("limit")
		}
	}
	found, next, err := id.Users.List(r.Context(), asked.Get("q"), asked.Get("cursor"), limit)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, usersBody{append([]account.User{}, found...), next})
}

func (s *Server) showUser(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	user, err := userID(r)
	if err != nil {
		return err
	}
	found, err := id.Users.Get(r.Context(), user)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, userBody{found})
}

func (s *Server) changeUser(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	user, err := userID(r)
	if err != nil {
		return err
	}
	body, err := decode[account.UserChange](w, r)
	if err != nil {
		return err
	}
	changes(r, given(body)...)
	changed, err := id.Users.Change(r.Context(), user, body)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, userBody{changed})
}

func (s *Server) deleteUser(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	user, err := userID(r)
	if err != nil {
		return err
	}
	if err := id.Users.Delete(r.Context(), user); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
