package httpapi

import (
	"context"
	"net"
	"net/http"
	"net/netip"

	"github.com/kubebyon/kubebyon/gateway/internal/account"
	"github.com/kubebyon/kubebyon/gateway/internal/session"
)

type (
	callerKey  struct{}
	addressKey struct{}
)

// caller is who a request is made by, for routes that need an account.
type caller struct {
	account account.Account
	session session.Session // zero where an API token is used
}

func withCaller(ctx context.Context, c caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// callerOf is for routes that need an account; admit put it there.
func callerOf(r *http.Request) caller {
	c, _ := r.Context().Value(callerKey{}).(caller)
	return c
}

// locate finds the client's address once, for the log, the limits and the audit log.
func locate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		address, _ := netip.ParseAddr(host)
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), addressKey{}, address.Unmap().WithZone(""))))
	})
}

// clientAddress is who the request comes from; the zero address where that is not known.
func clientAddress(r *http.Request) netip.Addr {
	address, _ := r.Context().Value(addressKey{}).(netip.Addr)
	return address
}
