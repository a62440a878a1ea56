package httpapi

import (
	"net/http"

	"github.com/kubebyon/kubebyon/gateway/internal/settings"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

type settingsBody struct {
	Settings settings.Settings `json:"settings"`
}

func (s *Server) showSettings(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	now, err := id.Settings.Read(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, settingsBody{now})
}

func (s *Server) changeSettings(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	body, err := decode[struct {
		Settings *settings.Change `json:"settings"`
	}](w, r)
	if err != nil {
		return err
	}
	if body.Settings == nil {
		return fault.New(fault.Invalid, "field_required", "settings is missing").In("settings")
	}
	changes(r, given(body.Settings)...)
	now, err := id.Settings.Change(r.Context(), *body.Settings, callerOf(r).account.ID)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, settingsBody{now})
}
