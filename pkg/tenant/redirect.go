package tenant

import (
	"errors"
	"net/http"
)

// noRedirects fails where a tenant's API answers with a redirect: http.Client would follow it, to wherever the tenant
// likes, and Kubernetes needs none.
type noRedirects struct{ next http.RoundTripper }

func (n noRedirects) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := n.next.RoundTrip(req)
	if err == nil && res.StatusCode >= 300 && res.StatusCode < 400 && res.StatusCode != http.StatusNotModified {
		_ = res.Body.Close()
		return nil, errors.New("the tenant's API answered with a redirect, which is not followed")
	}
	return res, err
}

// WrappedRoundTripper lets client-go find the transport beneath.
func (n noRedirects) WrappedRoundTripper() http.RoundTripper { return n.next }
