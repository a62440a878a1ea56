package httpapi

import "net/http"

func (s *Server) createCaptcha(w http.ResponseWriter, r *http.Request) error {
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	made, err := id.Captchas.New(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, made)
}
