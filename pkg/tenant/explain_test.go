package tenant_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/tenant"
)

func TestExplain(t *testing.T) {
	const at = "https://198.18.0.2:31234"
	known := fault.New(fault.Conflict, "token_id_taken", "it is taken")
	dial := func(cause error) error {
		return &url.Error{Op: "Get", URL: at + "/api?canary", Err: &net.OpError{Op: "dial", Net: "tcp", Err: cause}}
	}
	nodes := schema.GroupResource{Resource: "nodes"}
	for name, c := range map[string]struct {
		endpoint   string
		err        error
		code, says string
	}{
		"a fault":              {at, fmt.Errorf("wrapped: %w", known), "token_id_taken", "it is taken"},
		"the host refuses":     {"", dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), "host_cluster_unavailable", "the connection was refused"},
		"the host errs":        {"", apierrors.NewInternalError(errors.New("canary")), "host_cluster_unavailable", "an error (500)"},
		"unauthorized":         {at, apierrors.NewUnauthorized("canary"), "tenant_access_refused", "refuses the credential"},
		"forbidden":            {at, apierrors.NewForbidden(nodes, "", errors.New("canary")), "tenant_access_refused", "refuses the credential"},
		"it errs":              {at, apierrors.NewInternalError(errors.New("canary")), "tenant_unhealthy", "an error (500)"},
		"too much":             {at, fmt.Errorf("read: %w", tenant.ErrTooLarge), "tenant_unhealthy", "more than is taken"},
		"refused":              {at, dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), "tenant_unreachable", at + " cannot be reached: the connection was refused"},
		"no route":             {at, dial(os.NewSyscallError("connect", syscall.EHOSTUNREACH)), "tenant_unreachable", "no route"},
		"no such name":         {at, dial(&net.DNSError{Name: "canary"}), "tenant_unreachable", "does not resolve"},
		"silence":              {at, dial(context.DeadlineExceeded), "tenant_unreachable", "does not answer"},
		"another CA":           {at, dial(x509.UnknownAuthorityError{}), "tenant_unreachable", "not signed by the cluster's CA"},
		"another name":         {at, dial(x509.HostnameError{Certificate: &x509.Certificate{}, Host: "canary"}), "tenant_unreachable", "for another name"},
		"an expired one":       {at, dial(x509.CertificateInvalidError{Reason: x509.Expired}), "tenant_unreachable", "not valid"},
		"something unforeseen": {at, errors.New("canary"), "tenant_unreachable", "the connection failed"},
	} {
		err := tenant.Explain(t.Context(), "demo", c.endpoint, c.err)
		f := fault.From(err)
		if f.Code != c.code || !strings.Contains(f.Message, c.says) || strings.Contains(f.Message+f.Action, "canary") || !errors.Is(err, c.err) {
			t.Errorf("%s: %v", name, err)
		}
		if f != known && (f.Kind != fault.Unavailable || f.Action == "" || !strings.Contains(f.Message, `"demo"`)) {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if err := tenant.Explain(t.Context(), "demo", at, nil); err != nil {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tenant.Explain(ended, "demo", at, dial(context.Canceled)); !errors.Is(err, context.Canceled) || fault.From(err).Code != "canceled" {
		t.Errorf("the caller's own end: %v", err)
	}
}
