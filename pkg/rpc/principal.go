package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

const maxPrincipal = 512 // bytes of its header

var (
	userID    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	clusterID = regexp.MustCompile(`^cl_[a-z0-9]{20}$`)
)

type principalKey struct{}

// WithPrincipal says on whose behalf what is done with ctx is done. Calls made with it carry p along.
func WithPrincipal(ctx context.Context, p contract.Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalFrom gives the principal of ctx, false where there is none.
func PrincipalFrom(ctx context.Context) (contract.Principal, bool) {
	p, ok := ctx.Value(principalKey{}).(contract.Principal)
	return p, ok
}

// RequirePrincipal gives the principal of ctx, or the fault unauthenticated, principal_required.
func RequirePrincipal(ctx context.Context) (contract.Principal, error) {
	p, ok := PrincipalFrom(ctx)
	if !ok {
		return p, fault.New(fault.Unauthenticated, "principal_required", "this needs a user who is logged in").Do("log in and try again")
	}
	return p, nil
}

func encodePrincipal(p contract.Principal) (string, error) {
	if err := checkPrincipal(p); err != nil {
		return "", err
	}
	b, err := json.Marshal(p)
	return string(b), err
}

// decodePrincipal accepts exactly what encodePrincipal writes: one object, known fields, a plausible id and a known role.
func decodePrincipal(s string) (contract.Principal, error) {
	var p contract.Principal
	if len(s) > maxPrincipal {
		return p, errors.New("it is too long")
	}
	if !canonical(s, &p) {
		if err := strict([]byte(s), &p); err != nil {
			return contract.Principal{}, err
		}
	}
	if err := checkPrincipal(p); err != nil {
		return contract.Principal{}, err
	}
	return p, nil
}

// canonical reads what encodePrincipal writes for a session without JSON's decoder: most calls carry that. Anything else it
// leaves alone.
func canonical(s string, p *contract.Principal) bool {
	id, ok := strings.CutPrefix(s, `{"user_id":"`)
	if !ok {
		return false
	}
	id, role, ok := strings.Cut(id, `","role":"`)
	if !ok {
		return false
	}
	role, ok = strings.CutSuffix(role, `"}`)
	found := contract.Principal{UserID: id, Role: contract.Role(role)}
	if !ok || checkPrincipal(found) != nil { // which knows no quote and no escape
		return false
	}
	*p = found
	return true
}

func checkPrincipal(p contract.Principal) error {
	if !userID.MatchString(p.UserID) {
		return errors.New("its user_id is not one")
	}
	if p.Role != contract.RoleAdmin && p.Role != contract.RoleUser {
		return errors.New("its role is unknown")
	}
	if len(p.Clusters) > contract.MaxPrincipalClusters {
		return errors.New("it is narrowed to too many clusters")
	}
	for _, id := range p.Clusters {
		if !clusterID.MatchString(id) {
			return errors.New("it is narrowed to something that is no cluster's id")
		}
	}
	return nil
}

// strict decodes one JSON value and nothing after it, refusing fields that v lacks.
func strict(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is something after the JSON value")
	}
	return nil
}

// ServeAs is Serve for a method that needs a principal: without one, handle is not called.
func ServeAs[Req, Res any](s *Server, m contract.Method[Req, Res], handle func(context.Context, contract.Principal, Req) (Res, error)) {
	Serve(s, m, func(ctx context.Context, req Req) (Res, error) {
		who, err := RequirePrincipal(ctx)
		if err != nil {
			var none Res
			return none, err
		}
		return handle(ctx, who, req)
	})
}
