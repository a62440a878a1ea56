package httpapi

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/kubebyon/kubebyon/gateway/api"
	"github.com/kubebyon/kubebyon/pkg/contract"
)

// Pinger is the database.
type Pinger interface {
	Ping(ctx context.Context) error
}

// healthz says that this process answers, and nothing about any other.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, struct {
		Status string `json:"status"`
	}{"ok"})
}

// States of a part.
const (
	stateOK       = "ok"
	stateStarting = "starting" // not reached since this process started
	stateDown     = "down"
)

type check struct {
	Name     string `json:"name"`
	State    string `json:"state"`
	Required bool   `json:"required"` // whether it makes the whole unready
}

type readiness struct {
	Status string  `json:"status"` // ready or not_ready
	Checks []check `json:"checks"`
}

// readyz asks every part at once, for a second at most. Only states are shown: it is open to anybody.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), time.Second)
	defer cancel()
	services, id := s.services.Load(), s.identity.Load()
	checks := []check{{"postgresql", stateStarting, true}, {"nats", stateStarting, true}}
	for _, name := range []string{"cluster", "token", "node"} {
		checks = append(checks, check{name, stateStarting, true})
	}
	checks = append(checks, check{"edge", stateStarting, false}) // nothing waits for it yet

	var wg sync.WaitGroup
	if id != nil {
		wg.Go(func() { checks[0].State = stateOf(id.Database.Ping(ctx) == nil) })
	}
	if services != nil {
		checks[1].State = stateOf(services.connected())
		for i, p := range services.pings {
			wg.Go(func() {
				_, err := p.call(ctx, contract.Ping{})
				checks[2+i].State = stateOf(err == nil)
			})
		}
	}
	wg.Wait()

	body, status := readiness{Status: "ready", Checks: checks}, http.StatusOK
	for _, c := range checks {
		if c.Required && c.State != stateOK {
			body.Status, status = "not_ready", http.StatusServiceUnavailable
		}
	}
	return writeJSON(w, status, body)
}

func stateOf(ok bool) string {
	if ok {
		return stateOK
	}
	return stateDown
}

func (s *Server) openAPI(w http.ResponseWriter, _ *http.Request) error {
	writeText(w, http.StatusOK, "application/yaml", api.OpenAPI)
	return nil
}
