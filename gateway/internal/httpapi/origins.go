package httpapi

import (
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/rs/cors"

	"github.com/kubebyon/kubebyon/gateway/internal/idempotency"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// origins says what pages of other origins may do. Those that are listed may read answers, and use the cookie as long as they are of the same
// site. With * everybody may read what is answered to somebody without a cookie: credentials are never allowed, and nothing is trusted.
type origins struct {
	listed []string
	open   bool // * is among them
	csrf   *http.CrossOriginProtection
}

func newOrigins(list []string, log *slog.Logger) *origins {
	o := &origins{csrf: http.NewCrossOriginProtection()}
	for _, origin := range list {
		if origin == "*" {
			o.open = true
			continue
		}
		if err := o.csrf.AddTrustedOrigin(origin); err != nil {
			log.Warn("origin left out", slog.Any("error", err)) // the configuration has refused it already
			continue
		}
		o.listed = append(o.listed, origin)
	}
	return o
}

// share answers preflights, and lets browsers show answers of the API to pages of allowed origins.
func (o *origins) share(next http.Handler) http.Handler {
	if len(o.listed) == 0 && !o.open {
		return next
	}
	options := cors.Options{
		AllowedMethods: []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete},
		AllowedHeaders: []string{"Authorization", "Content-Type", idempotency.Header},
		ExposedHeaders: []string{"Retry-After", "RateLimit", "RateLimit-Policy", "Location", "Content-Disposition", idempotency.Replayed},
		MaxAge:         600,
	}
	options.AllowOriginFunc, options.AllowCredentials = func(origin string) bool { return slices.Contains(o.listed, origin) }, true
	listed := cors.New(options).Handler(next)
	options.AllowOriginFunc, options.AllowCredentials, options.AllowedOrigins = nil, false, []string{"*"}
	open := cors.New(options).Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !strings.HasPrefix(r.URL.Path, "/api/"):
			next.ServeHTTP(w, r)
		case o.open && !slices.Contains(o.listed, r.Header.Get("Origin")):
			open.ServeHTTP(w, r)
		default:
			listed.ServeHTTP(w, r)
		}
	})
}

// check refuses what a page of another origin has a browser do: a write, unless the page's origin is listed and of the same site. A bearer token
// is nothing that a browser adds by itself.
func (o *origins) check(r *http.Request) error {
	if bearer(r) {
		return nil
	}
	if err := o.csrf.Check(r); err != nil {
		return fault.New(fault.Forbidden, "cross_origin", "a page of another origin may not do this").Because(err)
	}
	if !reads(r) && crossSite(r) {
		return otherSite()
	}
	return nil
}

func crossSite(r *http.Request) bool { return r.Header.Get("Sec-Fetch-Site") == "cross-site" }

func otherSite() error {
	return fault.New(fault.Forbidden, "cross_site", "a page of another site may not use this log-in").Do("use an API token in the header Authorization")
}

func reads(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
}
