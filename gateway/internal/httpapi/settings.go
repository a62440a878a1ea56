package httpapi

import (
	"context"
	"log/slog"
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
	now, changed, err := id.Settings.Change(r.Context(), *body.Settings, callerOf(r).account.ID)
	if err != nil {
		changed = given(body.Settings)
		if body.Settings.Mail.Given {
			changed = append(changed, "mail")
		}
	}
	changes(r, changed...)
	if err != nil {
		return err
	}
	s.log.InfoContext(r.Context(), "settings changed", slog.Any("settings", changed))
	return writeJSON(w, http.StatusOK, settingsBody{now})
}

// Mailer sends mail: soon, or now with an error that names the step.
type Mailer interface {
	Enqueue(ctx context.Context, to, subject, text string) error
	Send(ctx context.Context, to, subject, text string) error
}

func (s *Server) testMail(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	body, err := decode[struct {
		To string `json:"to"`
	}](w, r)
	if err != nil {
		return err
	}
	if err := required("to", body.To); err != nil {
		return err
	}
	const text = "This is a test: the mail settings of KubeBYON work.\n"
	if err := id.Mail.Send(r.Context(), body.To, "KubeBYON test mail", text); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, struct {
		Sent bool `json:"sent"`
	}{true})
}
