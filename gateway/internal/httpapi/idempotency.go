package httpapi

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/kubebyon/kubebyon/gateway/internal/apitoken"
	"github.com/kubebyon/kubebyon/gateway/internal/idempotency"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
)

// What a request began elsewhere has no more time than the request itself, and is over when its key is free again without a word of it.
// This does not compile where that is not so.
const _ = uint64(idempotency.Lease - requestTime - 10*time.Second)

// repeatable says that the route takes an Idempotency-Key: what an account has made or done. Of strangers there is nothing to keep an
// answer by, and the other methods do the same thing when they are repeated.
func (rt route) repeatable() bool {
	return rt.Method == http.MethodPost && rt.scope == apitoken.Write && rt.access != public && rt.access != machine
}

// once lets the route handle the request, or gives the answer that the same request has had before.
func (s *Server) once(w http.ResponseWriter, r *http.Request, rt route) error {
	if !rt.repeatable() {
		return rt.handle(w, r)
	}
	key, given, err := idempotency.Key(r.Header[idempotency.Header])
	if err != nil {
		return err
	}
	if !given {
		return rt.handle(w, r)
	}
	id, err := s.withIdentity()
	if err != nil {
		return err
	}
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	// A client that is gone is the one that sends the request again: what has begun goes on without it.
	ctx, end := outlive(r.Context())
	defer end()
	r = r.WithContext(ctx)
	r.Body = io.NopCloser(bytes.NewReader(body))

	from := callerOf(r)
	raw, _ := ctx.Value(queryKey{}).(string)
	claim, before, err := id.Repeats.Begin(ctx,
		idempotency.Asker{UserID: from.account.ID, Credential: from.credential(), Secret: telemetry.Secret(shown(r))},
		idempotency.Request{Key: key, Method: r.Method, Path: r.URL.EscapedPath(), Query: raw, Body: body})
	if fault.From(err) != nil && fault.From(err).Code == idempotency.InProgress {
		w.Header().Set("Retry-After", "1")
	}
	if err != nil {
		return err
	}
	if before != nil {
		replay(w, r, before)
		return nil
	}
	return s.claimed(w, r, rt, claim)
}

// claimed does the request, and keeps what came of it before anybody sees it. What fails, a panic too, frees the key.
func (s *Server) claimed(w http.ResponseWriter, r *http.Request, rt route, claim *idempotency.Claim) error {
	// Also after the request's time is up.
	ctx := context.WithoutCancel(r.Context())
	done := false
	defer func() {
		if done {
			return
		}
		if err := claim.Free(ctx); err != nil {
			s.log.WarnContext(ctx, "an idempotency key stays taken until its lease ends", slog.Any("error", err))
		}
	}()
	out := &heldBack{header: http.Header{}, status: http.StatusOK}
	if err := rt.handle(out, r); err != nil {
		return err
	}
	if done = idempotency.Keeps(out.status); done {
		answer := idempotency.Answer{Status: out.status, Header: out.header, Body: out.body.Bytes()}
		if rec := recordOf(r); rec != nil {
			answer.Objects = rec.objects
		}
		// It has been done, and its asker is told so whatever becomes of the copy.
		if err := claim.Keep(ctx, answer); err != nil {
			s.log.WarnContext(ctx, "an answer is not kept: the same request is done again once the lease of its key has ended", slog.Any("error", err))
		}
	}
	give(w, out.header, out.status, out.body.Bytes())
	return nil
}

func replay(w http.ResponseWriter, r *http.Request, a *idempotency.Answer) {
	if rec := recordOf(r); rec != nil {
		rec.replayed = true
	}
	concerns(r, a.Objects...)
	w.Header().Set(idempotency.Replayed, "true")
	give(w, a.Header, a.Status, a.Body)
}

func give(w http.ResponseWriter, header http.Header, status int, body []byte) {
	for name, values := range header {
		w.Header()[name] = slices.Clone(values)
	}
	if len(body) > 0 {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // the reader has gone: nobody to tell
}

// outlive gives a context that ends when ctx's time is up, and not before.
func outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		end = time.Now().Add(requestTime)
	}
	return context.WithDeadline(context.WithoutCancel(ctx), end)
}

// heldBack is an answer that nobody sees yet. The first status counts, as over HTTP.
type heldBack struct {
	header  http.Header
	status  int
	written bool
	body    bytes.Buffer
}

func (h *heldBack) Header() http.Header { return h.header }

func (h *heldBack) WriteHeader(status int) {
	if !h.written {
		h.status, h.written = status, true
	}
}

func (h *heldBack) Write(b []byte) (int, error) {
	h.written = true
	return h.body.Write(b)
}
