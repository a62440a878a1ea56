// Package probe proves a route from outside: a TLS handshake with its domain through HAProxy. It must never send a request,
// and trusts nothing that answers: it looks for whom the certificate is, not at who signed it, which HAProxy's clients do.
package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/time/rate"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// Prober implements edge.Prober.
type Prober struct {
	addr string
	pace *rate.Limiter
}

// New proves routes at addr, where HAProxy listens as this process sees it. perSecond keeps all proofs together under what
// HAProxy takes from one address; 0: as fast as they come, as from the same machine.
func New(addr string, perSecond int) *Prober {
	pace := rate.NewLimiter(rate.Inf, 1)
	if perSecond > 0 {
		pace = rate.NewLimiter(rate.Limit(perSecond), perSecond)
	}
	return &Prober{addr: addr, pace: pace}
}

// Probe implements edge.Prober. The faults, all unavailable:
//
//	edge_closed           nobody listens where HAProxy should
//	route_refused         HAProxy closed the connection: it knows no such route, or nothing behind it answers
//	route_silent          no answer in time
//	certificate_mismatch  what answered is not the domain's
//	route_broken          what answered speaks no TLS, or not with us
func (p *Prober) Probe(ctx context.Context, domain string) error {
	if err := p.pace.Wait(ctx); err != nil {
		return silent(err)
	}
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", p.addr)
	switch {
	case err != nil && ctx.Err() != nil:
		return silent(err)
	case err != nil:
		return fault.New(fault.Unavailable, "edge_closed", "HAProxy does not take connections").
			Do("the operator looks at GET /api/admin/edge and at HAProxy's log").Because(err)
	}
	defer func() { _ = raw.Close() }()
	conn := tls.Client(raw, &tls.Config{
		ServerName: domain,
		// Whether a signer is trusted is for the domain's clients to say, each with the tenant's own CA.
		InsecureSkipVerify: true, //nolint:gosec // see VerifyConnection
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return errors.New("no certificate")
			}
			return state.PeerCertificates[0].VerifyHostname(domain)
		},
	})
	return explain(ctx, conn.HandshakeContext(ctx))
}

func explain(ctx context.Context, err error) error {
	var (
		name      x509.HostnameError
		malformed tls.RecordHeaderError
	)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return silent(err)
	case errors.As(err, &name):
		return fault.New(fault.Unavailable, "certificate_mismatch", "what answers has a certificate for other names").
			Do("wait while the control plane takes the domain into its certificate; if it stays, look at the cluster's events").Because(err)
	case errors.As(err, &malformed):
		return broken(err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fault.New(fault.Unavailable, "route_refused", "HAProxy closes the connection: the control plane does not answer at the host nodes' addresses").
			Do("look whether the control plane runs, and whether HAProxy's machine reaches the host nodes' node ports").Because(err)
	}
	return broken(err)
}

func silent(err error) error {
	return fault.New(fault.Unavailable, "route_silent", "nothing answered in time").
		Do("look whether HAProxy's machine reaches the host nodes' node ports").Because(err)
}

func broken(err error) error {
	return fault.New(fault.Unavailable, "route_broken", "what answers makes no TLS connection").
		Do("look at what listens at the host nodes' node ports").Because(err)
}
