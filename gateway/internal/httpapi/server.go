// Package httpapi is the HTTP edge: routes, sessions in cookies, and forwarding to the services over NATS. It must
// never let a credential into a log, a trace or an error, and never forward what it has not checked the shape of.
package httpapi

import (
	"log/slog"
	"net/http"
	"sync/atomic"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/gateway/internal/apitoken"
	"github.com/kubebyon/kubebyon/gateway/internal/attempt"
	"github.com/kubebyon/kubebyon/gateway/internal/audit"
	"github.com/kubebyon/kubebyon/gateway/internal/captcha"
	"github.com/kubebyon/kubebyon/gateway/internal/clientaddr"
	"github.com/kubebyon/kubebyon/gateway/internal/idempotency"
	"github.com/kubebyon/kubebyon/gateway/internal/mirror"
	"github.com/kubebyon/kubebyon/gateway/internal/openid"
	"github.com/kubebyon/kubebyon/gateway/internal/secondfactor"
	"github.com/kubebyon/kubebyon/gateway/internal/session"
	"github.com/kubebyon/kubebyon/gateway/internal/settings"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Options of a Server.
type Options struct {
	Log               *slog.Logger
	Mirror            *mirror.Mirror
	SecureCookie      bool               // send cookies over HTTPS alone, also those that are given behind a proxy's TLS
	Domain            string             // the console's; what else the TLS port is asked for is not served; empty: any
	OpenID            *openid.Client     // nil: there is no provider
	Origins           []string           // whose pages may use the API; see origins
	Proxies           clientaddr.Proxies // whose word about a client's address counts
	API, Join, Lookup Limiter            // for each client's address; nil: unlimited
}

// Identity is what stands on PostgreSQL.
type Identity struct {
	Accounts      *account.Service
	OpenID        *openid.Accounts
	Directory     *account.Directory
	Registration  *account.Registration
	Passwords     *account.Passwords
	Invitations   *account.Invitations
	Sessions      *session.Service
	Tokens        *apitoken.Service
	Users         *account.Users
	Settings      *settings.Service
	Mail          Mailer
	Audit         *audit.Trail
	Captchas      *captcha.Service
	Attempts      *attempt.Service
	SecondFactors *secondfactor.Service
	Repeats       *idempotency.Service
	AuthLimit     Limiter // for each client's address; nil: unlimited, as the next ones
	LogInLimit    Limiter // for each account's address, as countAccount takes it
	Database      Pinger
}

// Server answers from its first moment; what needs a part that is not attached yet answers 503.
type Server struct {
	log               *slog.Logger
	mirror            *mirror.Mirror
	secure            bool
	domain            string
	openID            *openid.Client
	origins           *origins
	proxies           clientaddr.Proxies
	api, join, lookup Limiter
	identity          atomic.Pointer[Identity]
	services          atomic.Pointer[Services]
	routes            []route
	mux               *http.ServeMux
}

// New makes a Server without PostgreSQL and NATS.
func New(o Options) *Server {
	s := &Server{log: o.Log, mirror: o.Mirror, secure: o.SecureCookie, domain: o.Domain, openID: o.OpenID, origins: newOrigins(o.Origins, o.Log), proxies: o.Proxies,
		api: o.API, join: o.Join, lookup: o.Lookup, mux: http.NewServeMux()}
	s.routes = s.table()
	for _, rt := range s.routes {
		s.mux.Handle(rt.Method+" "+rt.Path, s.serve(rt))
	}
	return s
}

// AttachIdentity makes accounts, sessions and settings available.
func (s *Server) AttachIdentity(i Identity) { s.identity.Store(&i) }

// AttachServices makes the services available.
func (s *Server) AttachServices(v Services) { s.services.Store(&v) }

// Handler is the whole edge.
func (s *Server) Handler() http.Handler {
	return s.locate(hideQuery(trace(s.observe(s.direct(s.origins.share(http.HandlerFunc(s.dispatch)))))))
}

// Routes lists what is served, for comparison with the API's description.
func (s *Server) Routes() []Route {
	all := make([]Route, 0, len(s.routes))
	for _, rt := range s.routes {
		rt.Repeatable = rt.repeatable()
		all = append(all, rt.Route)
	}
	return all
}

func (s *Server) withIdentity() (*Identity, error) {
	if i := s.identity.Load(); i != nil {
		return i, nil
	}
	return nil, fault.New(fault.Unavailable, "database_unavailable", "the gateway has not reached its database yet").Do("try again in a few seconds")
}

func (s *Server) withServices() (*Services, error) {
	if v := s.services.Load(); v != nil {
		return v, nil
	}
	return nil, fault.New(fault.Unavailable, "messaging_unavailable", "the gateway has not reached NATS yet").Do("try again in a few seconds")
}
