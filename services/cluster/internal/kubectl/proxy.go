package kubectl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/tenant"
)

const (
	maxBody = 64 << 10 // of a review
	// maxAnswers bounds what a run reads from the tenant, all answers together.
	maxAnswers = 64 << 20
	// atOnce bounds what a run asks at the same time.
	atOnce = 8
)

// api is a tenant's, with an identity that only reads.
type api interface {
	// ask sends one question and gives the answer, whose body the caller closes. headers are Accept and Content-Type at most.
	ask(ctx context.Context, q question, header http.Header, body []byte) (*http.Response, error)
}

// proxy serves a tenant's API to one run, as far as allow lets it. It passes on no header by which a client could speak for another,
// holds no credential itself, and shows none.
type proxy struct {
	api api
	// answerBy is when the API must have answered for the first time.
	answerBy time.Time
	// failed is told what ends the run: the API cannot be reached, or says too much.
	failed func(error)

	slots    chan struct{}
	left     atomic.Int64
	answered atomic.Bool
}

func newProxy(a api, answerBy time.Time, failed func(error)) *proxy {
	p := &proxy{api: a, answerBy: answerBy, failed: failed, slots: make(chan struct{}, atOnce)}
	p.left.Store(maxAnswers)
	return p
}

// serve answers on l until stop, which waits for what is under way.
func (p *proxy) serve(ctx context.Context, l net.Listener) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	server := &http.Server{
		Handler: p, ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 64 << 10,
		ErrorLog:    log.New(io.Discard, "", 0), // a child that is killed leaves broken connections
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(l) })
	return func() {
		cancel()
		// Nothing waits long: every answer under way has just been cancelled.
		end, done := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer done()
		if server.Shutdown(end) != nil {
			_ = server.Close()
		}
		running.Wait()
	}
}

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q, reason := allow(r.Method, r.URL)
	if reason != "" {
		refuse(w, reason)
		return
	}
	if q.waits {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	}
	var body []byte
	header := http.Header{}
	if accept := r.Header.Get("Accept"); accept != "" {
		header.Set("Accept", accept)
	}
	if r.Method == http.MethodPost {
		var err error
		if body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
			refuse(w, "the review is too long")
			return
		}
		header.Set("Content-Type", r.Header.Get("Content-Type"))
	}
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-r.Context().Done():
		return
	}
	p.pass(w, r, q, header, body)
}

func (p *proxy) pass(w http.ResponseWriter, r *http.Request, q question, header http.Header, body []byte) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	late := time.AfterFunc(time.Until(p.answerBy), func() {
		if !p.answered.Load() {
			cancel(context.DeadlineExceeded)
		}
	})
	defer late.Stop()
	res, err := p.api.ask(ctx, q, header, body)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = errors.Join(err, cause)
		}
		p.fail(r, err)
		panic(http.ErrAbortHandler)
	}
	defer func() { _ = res.Body.Close() }()
	p.answered.Store(true)
	for _, name := range []string{"Content-Type", "Warning", "Retry-After"} {
		if values := res.Header.Values(name); len(values) > 0 {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(res.StatusCode)
	if err := p.copy(w, res.Body); err != nil {
		p.fail(r, err)
		panic(http.ErrAbortHandler) // half an answer must not look like a whole one
	}
}

// copy gives the errors of body alone: what cannot be written has nobody who reads it.
func (p *proxy) copy(w io.Writer, body io.Reader) error {
	counted := &counted{body: body, left: &p.left}
	_, _ = io.Copy(w, counted)
	return counted.failed
}

// counted is an answer that fails once all of a run's together are too long.
type counted struct {
	body   io.Reader
	left   *atomic.Int64
	failed error
}

// Read implements io.Reader.
func (c *counted) Read(buf []byte) (int, error) {
	n, err := c.body.Read(buf)
	if c.left.Add(-int64(n)) < 0 {
		n, err = 0, tenant.ErrTooLarge
	}
	if !errors.Is(err, io.EOF) {
		c.failed = err
	}
	return n, err
}

// fail tells of an error, unless the run has ended or lost interest.
func (p *proxy) fail(r *http.Request, err error) {
	if r.Context().Err() != nil {
		return
	}
	if errors.Is(err, tenant.ErrTooLarge) {
		err = fault.New(fault.TooLarge, "kubectl_answer_too_large", "the cluster answers more than a kubectl command may read").
			Do("ask for less at once: one namespace, a label, or one object").Because(err)
	}
	p.failed(err)
}

// refuse answers as the API would, so that kubectl tells the reason.
func refuse(w http.ResponseWriter, reason string) {
	text, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: "KubeBYON does not ask this: " + reason,
	})
	if err != nil {
		text = nil
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusForbidden)
	_, _ = w.Write(text)
}

// request writes a question to the API at base, which is https and a host alone.
func request(ctx context.Context, base *url.URL, q question, header http.Header, body []byte) (*http.Request, error) {
	at := &url.URL{Scheme: base.Scheme, Host: base.Host, Path: q.path, RawQuery: q.query.Encode()}
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, q.method, at.String(), content)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	return req, nil
}
