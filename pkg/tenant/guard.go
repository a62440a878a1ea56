package tenant

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kubebyon/kubebyon/pkg/reach"
)

const (
	dialTimeout = 10 * time.Second
	keepAlive   = 15 * time.Second

	// maxAnswer bounds one answer of a tenant's API, in bytes as they are unpacked: 500 nodes with all that kubelets write
	// take 15 MiB. What a tenant keeps there, it may fill with a gigabyte.
	maxAnswer = 32 << 20
)

// ErrTooLarge is the end of an answer of a tenant's API that is larger than any that we ask for.
var ErrTooLarge = errors.New("the tenant's API answered more than is taken from it")

// Guard holds a client of an API whose address and answers are a tenant's to choose: it connects to no address that
// reach.Forbidden names, whatever the name resolves to at that moment; directly, since a proxy would resolve it instead; it
// follows no redirect, and fails with ErrTooLarge in the middle of an answer over 32 MiB.
func Guard(cfg *rest.Config, allowLoopback bool) {
	cfg.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive, Control: reach.Control(allowLoopback)}).DialContext
	cfg.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil } //nolint:nilnil // http.Transport's way to say: none
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return guarded{next} })
}

type guarded struct{ next http.RoundTripper }

func (g guarded) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := g.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	// http.Client would follow it, to wherever the tenant likes, and Kubernetes needs none.
	if res.StatusCode >= 300 && res.StatusCode < 400 && res.StatusCode != http.StatusNotModified {
		_ = res.Body.Close()
		return nil, errors.New("the tenant's API answered with a redirect, which is not followed")
	}
	if res.ContentLength > maxAnswer {
		_ = res.Body.Close()
		return nil, fmt.Errorf("%w: %d bytes", ErrTooLarge, res.ContentLength)
	}
	res.Body = &bounded{ReadCloser: res.Body, left: maxAnswer}
	return res, nil
}

// WrappedRoundTripper lets client-go find the transport beneath.
func (g guarded) WrappedRoundTripper() http.RoundTripper { return g.next }

// bounded is a body that fails, rather than ends, once it has given left bytes.
type bounded struct {
	io.ReadCloser
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, ErrTooLarge
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n - 1, ErrTooLarge
	}
	return n, err
}
