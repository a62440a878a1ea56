package httpapi

import (
	"net/http"
	"regexp"

	"github.com/kubebyon/kubebyon/pkg/contract/edgev1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// domainForm is loose: a domain that there is no more is a place in the list all the same.
var domainForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)

// edgeStatus shows how the edge does, and a page of its routes.
func (s *Server) edgeStatus(w http.ResponseWriter, r *http.Request) error {
	services, err := s.withServices()
	if err != nil {
		return err
	}
	values, err := query(r)
	if err != nil {
		return err
	}
	after := only(values, "after")
	if given, ok := values["after"]; ok && (len(given) != 1 || !domainForm.MatchString(after)) {
		return fault.New(fault.Invalid, "parameter_invalid", "after is no domain").In("after").Do("give the last domain of the page before, or nothing")
	}
	found, err := services.edgeStatus(r.Context(), edgev1.StatusRequest{After: after})
	if err != nil {
		return err
	}
	found.Workers, found.Routes = list(found.Workers), list(found.Routes)
	for i := range found.Routes {
		found.Routes[i].Servers = list(found.Routes[i].Servers)
	}
	return writeJSON(w, http.StatusOK, found)
}
