package rpc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/pkg/telemetry"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
)

var spans = tracetest.NewSpanRecorder()

var metrics = sdkmetric.NewManualReader()

func TestMain(m *testing.M) {
	otel.SetMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(metrics)))
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	goleak.VerifyTestMain(m)
}

type ask struct {
	Text string `json:"text"`
	N    int    `json:"n,omitempty"`
}

type answer struct {
	Text string `json:"text"`
}

// On a busy machine anything can take a second. What must be quick is held against long, which it would take if it hung.
const (
	long  = 30 * time.Second
	quick = 5 * time.Second
)

var (
	echo  = contract.Method[ask, answer]{Subject: "kubebyon.v1.test.echo", Timeout: long, Idempotent: true}
	other = contract.Method[ask, answer]{Subject: "kubebyon.v1.test.other", Timeout: long}
)

func connect(tb testing.TB, url string) *nats.Conn {
	tb.Helper()
	c, err := rpc.Connect(tb.Context(), rpc.NATS{NATSURL: url}, "test", slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// lines is a log that tests may read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.b.Write(p) }
func (l *lines) String() string              { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

type handler = func(context.Context, ask) (answer, error)

// serve starts a service whose method echo is h and gives a client's connection to it.
func serve(t *testing.T, o rpc.Options, h handler, opts ...natstest.Option) (*rpc.Server, *nats.Conn, *lines) {
	t.Helper()
	url := natstest.New(t, opts...)
	log := &lines{}
	o.Service, o.Version, o.Log = "test", "v1", telemetry.NewLogger(log, "json", "debug")
	s := rpc.NewServer(connect(t, url), o)
	rpc.Serve(s, echo, h)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	return s, connect(t, url), log
}

func same(_ context.Context, r ask) (answer, error) {
	return answer(struct{ Text string }{r.Text}), nil
}

func wantFault(t *testing.T, err error, kind fault.Kind, code string) *fault.Error {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != kind || f.Code != code {
		t.Fatalf("got %v, want %s (%s)", err, kind, code)
	}
	return f
}

func TestCall(t *testing.T) {
	_, conn, _ := serve(t, rpc.Options{}, same)
	got, err := rpc.Client(conn, echo)(t.Context(), ask{Text: "hello"})
	if err != nil || got.Text != "hello" {
		t.Fatalf("%v, %v", got, err)
	}
	ping := contract.Method[contract.Ping, contract.Pong]{Subject: "kubebyon.v1.test.ping", Timeout: long}
	pong, err := rpc.Client(conn, ping)(t.Context(), contract.Ping{})
	if err != nil || pong != (contract.Pong{Service: "test", Version: "v1"}) {
		t.Fatalf("%v, %v", pong, err)
	}
}

// go-kit's publisher sends no headers: the principal, the trace and the deadline must arrive.
func TestHeadersArrive(t *testing.T) {
	var left time.Duration
	var traceID, parent oteltrace.SpanContext
	_, conn, _ := serve(t, rpc.Options{}, func(ctx context.Context, r ask) (answer, error) {
		p, err := rpc.RequirePrincipal(ctx)
		if err != nil {
			return answer{}, err
		}
		deadline, _ := ctx.Deadline()
		left = time.Until(deadline)
		traceID = oteltrace.SpanContextFromContext(ctx)
		return answer{Text: p.UserID + " " + string(p.Role)}, nil
	})
	call := rpc.Client(conn, echo)

	_, err := call(t.Context(), ask{})
	wantFault(t, err, fault.Unauthenticated, "principal_required")

	ctx, span := otel.Tracer("t").Start(t.Context(), "root")
	defer span.End()
	parent = span.SpanContext()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	got, err := call(rpc.WithPrincipal(ctx, contract.Principal{UserID: "usr_1", Role: contract.RoleAdmin}), ask{})
	if err != nil || got.Text != "usr_1 admin" {
		t.Fatalf("%v, %v", got, err)
	}
	if left > 10*time.Second || left < 5*time.Second {
		t.Errorf("the handler had %v of 10s", left)
	}
	if traceID.TraceID() != parent.TraceID() {
		t.Errorf("trace %s became %s", parent.TraceID(), traceID.TraceID())
	}
	// root → client span → server span
	var client, server sdktrace.ReadOnlySpan
	for _, s := range spans.Ended() {
		if s.SpanContext().TraceID() == parent.TraceID() {
			switch s.SpanKind() {
			case oteltrace.SpanKindClient:
				client = s
			case oteltrace.SpanKindServer:
				server = s
			}
		}
	}
	if client == nil || server == nil || client.Parent().SpanID() != parent.SpanID() || server.Parent().SpanID() != client.SpanContext().SpanID() {
		t.Errorf("the spans do not hang together: %v %v", client, server)
	}
}

func TestTheWireUsesLowerCaseHeaders(t *testing.T) {
	conn := connect(t, natstest.New(t))
	sub, err := conn.SubscribeSync(echo.Subject)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = rpc.Client(conn, echo)(rpc.WithPrincipal(t.Context(), contract.Principal{UserID: "usr_1", Role: "user"}), ask{})
	}()
	msg, err := sub.NextMsg(quick)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"traceparent", "kb-timeout-ms", "kb-principal"} {
		if len(msg.Header[name]) != 1 {
			t.Errorf("no header %s in %v", name, msg.Header)
		}
	}
	for k := range msg.Header {
		if k != strings.ToLower(k) {
			t.Errorf("the header %s is not lower-case", k)
		}
	}
	// An answer without our status is no success, whatever its body: go-kit's own errors look like this.
	if err := msg.Respond([]byte(`{"err":"it failed"}`)); err != nil {
		t.Fatal(err)
	}
	<-done
}

func TestAnswersThatAreNoAnswers(t *testing.T) {
	conn := connect(t, natstest.New(t))
	for name, reply := range map[string]*nats.Msg{
		"bare":            {Data: []byte(`{"err":"failed"}`)},
		"unknown status":  {Header: nats.Header{"kb-status": {"fine"}}, Data: []byte(`{}`)},
		"both":            {Header: nats.Header{"kb-status": {"ok"}, "kb-error-kind": {"internal"}}, Data: []byte(`{}`)},
		"twice":           {Header: nats.Header{"kb-status": {"ok", "ok"}}, Data: []byte(`{}`)},
		"other case":      {Header: nats.Header{"Kb-Status": {"ok"}}, Data: []byte(`{}`)},
		"unknown kind":    {Header: nats.Header{"kb-status": {"error"}, "kb-error-kind": {"odd"}, "kb-error-code": {"x"}}, Data: []byte(`{"message":"m"}`)},
		"code is text":    {Header: nats.Header{"kb-status": {"error"}, "kb-error-kind": {"conflict"}, "kb-error-code": {"A b"}}, Data: []byte(`{"message":"m"}`)},
		"no error body":   {Header: nats.Header{"kb-status": {"error"}, "kb-error-kind": {"conflict"}, "kb-error-code": {"x"}}},
		"ok but no JSON":  {Header: nats.Header{"kb-status": {"ok"}}, Data: []byte(`oops`)},
		"ok but an array": {Header: nats.Header{"kb-status": {"ok"}}, Data: []byte(`[]`)},
	} {
		t.Run(name, func(t *testing.T) {
			sub, err := conn.Subscribe(echo.Subject, func(m *nats.Msg) { _ = m.RespondMsg(&nats.Msg{Header: reply.Header, Data: reply.Data}) })
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = sub.Unsubscribe() }()
			_, err = rpc.Client(conn, echo)(t.Context(), ask{})
			wantFault(t, err, fault.Internal, "reply_malformed")
		})
	}
}

func TestFaultsCrossWhole(t *testing.T) {
	sent := fault.New(fault.Conflict, "cluster_name_taken", "a cluster named %q exists — déjà", "a\r\nb").In("name").Do("choose another")
	_, conn, _ := serve(t, rpc.Options{}, func(context.Context, ask) (answer, error) {
		return answer{}, fmt.Errorf("wrapped: %w", sent.Because(errors.New("hidden cause")))
	})
	_, err := rpc.Client(conn, echo)(t.Context(), ask{})
	f := wantFault(t, err, fault.Conflict, "cluster_name_taken")
	if f.Message != sent.Message || f.Field != "name" || f.Action != "choose another" || strings.Contains(f.Error(), "hidden") {
		t.Fatalf("%+v", f)
	}
}

func TestInternalTextStaysInside(t *testing.T) {
	for name, h := range map[string]handler{
		"unknown error": func(context.Context, ask) (answer, error) { return answer{}, errors.New("password=hunter2") },
		"internal fault": func(context.Context, ask) (answer, error) {
			return answer{}, fault.New(fault.Internal, "internal", "password=hunter2")
		},
		"panic": func(context.Context, ask) (answer, error) { panic("password=hunter2") },
	} {
		t.Run(name, func(t *testing.T) {
			_, conn, log := serve(t, rpc.Options{}, h)
			ctx, span := otel.Tracer("t").Start(t.Context(), "root")
			defer span.End()
			_, err := rpc.Client(conn, echo)(ctx, ask{})
			f := wantFault(t, err, fault.Internal, "internal")
			if text := fmt.Sprintf("%+v", *f); strings.Contains(text, "hunter2") {
				t.Errorf("it left the service: %s", text)
			}
			if got := log.String(); strings.Count(got, `"level":"ERROR"`) != 1 || !strings.Contains(got, "hunter2") ||
				!strings.Contains(got, span.SpanContext().TraceID().String()) {
				t.Errorf("it is not in the log once, with its trace id: %s", got)
			}
		})
	}
}

func TestRequestsAreReadStrictly(t *testing.T) {
	var calls atomic.Int32
	_, conn, _ := serve(t, rpc.Options{}, func(_ context.Context, r ask) (answer, error) { calls.Add(1); return answer{}, nil })
	for body, field := range map[string]string{
		`{"text":"x","more":1}`: "more", `{"n":"1"}`: "n", ``: "", `{`: "", `[]`: "", `{} {}`: "", `{}x`: "", "\xff": "",
	} {
		msg, err := conn.Request(echo.Subject, []byte(body), quick)
		if err != nil {
			t.Fatal(err)
		}
		var e struct{ Message, Field string }
		_ = json.Unmarshal(msg.Data, &e)
		if msg.Header["kb-error-kind"][0] != "invalid" || e.Field != field || e.Message == "" || strings.Contains(e.Message, "Go ") {
			t.Errorf("%q: %v %s", body, msg.Header, msg.Data)
		}
	}
	if calls.Load() != 0 {
		t.Error("a malformed request reached the handler")
	}
}

func TestMalformedHeadersAreRefused(t *testing.T) {
	_, conn, _ := serve(t, rpc.Options{}, same)
	for _, h := range []nats.Header{
		{"kb-principal": {`{"user_id":"usr_1","role":"root"}`}},
		{"kb-principal": {`{"user_id":"usr_1","role":"admin","more":1}`}},
		{"kb-principal": {`{"user_id":"usr_1","role":"admin"} x`}},
		{"kb-principal": {`{"user_id":"","role":"admin"}`}},
		{"kb-principal": {`{"user_id":"a b","role":"admin"}`}},
		{"kb-principal": {``}},
		{"kb-principal": {`null`}},
		{"kb-principal": {`{"user_id":"usr_1","role":"user"}`, `{"user_id":"usr_2","role":"admin"}`}},
		{"kb-principal": {`{"user_id":"` + strings.Repeat("a", 1000) + `","role":"user"}`}},
		{"kb-timeout-ms": {"0"}}, {"kb-timeout-ms": {"-5"}}, {"kb-timeout-ms": {"1e3"}}, {"kb-timeout-ms": {"99999999999999999999"}},
		{"kb-timeout-ms": {"5", "6"}},
	} {
		msg, err := conn.RequestMsg(&nats.Msg{Subject: echo.Subject, Header: h, Data: []byte(`{"text":""}`)}, quick)
		if err != nil {
			t.Fatal(err)
		}
		if len(msg.Header["kb-error-code"]) != 1 || msg.Header["kb-error-code"][0] != "header_malformed" {
			t.Errorf("%v was answered %v", h, msg.Header)
		}
	}
	// A canonicalised name is another header, so it says nothing.
	msg, err := conn.RequestMsg(&nats.Msg{Subject: echo.Subject, Header: nats.Header{"Kb-Principal": {"junk"}}, Data: []byte(`{"text":""}`)}, quick)
	if err != nil || msg.Header["kb-status"][0] != "ok" {
		t.Errorf("%v, %v", msg, err)
	}
	_, err = rpc.Client(conn, echo)(rpc.WithPrincipal(t.Context(), contract.Principal{UserID: "a\r\nkb-status: ok", Role: "user"}), ask{})
	wantFault(t, err, fault.Internal, "internal")
}

func TestNobodyListensIsKnownInMilliseconds(t *testing.T) {
	conn := connect(t, natstest.New(t))
	start := time.Now()
	_, err := rpc.Client(conn, other)(t.Context(), ask{})
	wantFault(t, err, fault.Unavailable, "service_unavailable")
	_, err = rpc.Client(conn, echo)(t.Context(), ask{}) // idempotent: tried again, still milliseconds
	wantFault(t, err, fault.Unavailable, "service_unavailable")
	if took := time.Since(start); took > quick {
		t.Errorf("it took %v", took)
	}
}

// Nobody listens: an idempotent method is tried again, another is sent once and never more.
func TestOnlyIdempotentMethodsAreSentAgain(t *testing.T) {
	conn := connect(t, natstest.New(t))
	for _, m := range []contract.Method[ask, answer]{echo, other} {
		before := conn.Stats().OutMsgs
		_, err := rpc.Client(conn, m)(t.Context(), ask{})
		wantFault(t, err, fault.Unavailable, "service_unavailable")
		if sent := conn.Stats().OutMsgs - before; m.Idempotent != (sent > 1) || sent == 0 || sent > 3 {
			t.Errorf("%s was sent %d times", m.Subject, sent)
		}
	}
}

func TestTheDeadlineCrosses(t *testing.T) {
	ended := make(chan struct{}, 1)
	_, conn, _ := serve(t, rpc.Options{}, func(ctx context.Context, _ ask) (answer, error) {
		<-ctx.Done()
		ended <- struct{}{}
		time.Sleep(200 * time.Millisecond) // it answers, too late
		return answer{}, ctx.Err()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := rpc.Client(conn, echo)(ctx, ask{})
	wantFault(t, err, fault.Timeout, "service_timeout")
	if took := time.Since(start); took < 150*time.Millisecond || took > quick {
		t.Errorf("the caller waited %v", took)
	}
	select {
	case <-ended: // long before the method's own time
	case <-time.After(quick):
		t.Error("the handler's context did not end with the caller's")
	}
}

// Whether the service or the caller notices first is chance; the code must not be.
func TestAnEndedContextHasOneCode(t *testing.T) {
	for cause, want := range map[error]struct {
		kind fault.Kind
		code string
	}{
		context.DeadlineExceeded: {fault.Timeout, "service_timeout"},
		context.Canceled:         {fault.Unavailable, "service_unavailable"},
	} {
		_, conn, _ := serve(t, rpc.Options{}, func(context.Context, ask) (answer, error) { return answer{}, fmt.Errorf("query: %w", cause) })
		_, err := rpc.Client(conn, echo)(t.Context(), ask{})
		wantFault(t, err, want.kind, want.code)
	}
}

func TestCallsAreMeasuredAtBothEnds(t *testing.T) {
	_, conn, _ := serve(t, rpc.Options{}, func(context.Context, ask) (answer, error) {
		return answer{}, fault.New(fault.Conflict, "taken", "taken")
	})
	_, err := rpc.Client(conn, echo)(t.Context(), ask{})
	wantFault(t, err, fault.Conflict, "taken")
	for deadline := time.Now().Add(quick); ; time.Sleep(10 * time.Millisecond) { // the server records after it answered
		var got metricdata.ResourceMetrics
		if err := metrics.Collect(t.Context(), &got); err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, scope := range got.ScopeMetrics {
			for _, m := range scope.Metrics {
				for _, p := range m.Data.(metricdata.Histogram[float64]).DataPoints {
					method, _ := p.Attributes.Value("rpc.method")
					outcome, _ := p.Attributes.Value("outcome")
					seen[m.Name+" "+method.AsString()+" "+outcome.AsString()] = true
				}
			}
		}
		if seen["kubebyon.rpc.client.duration kubebyon.v1.test.echo conflict"] && seen["kubebyon.rpc.server.duration kubebyon.v1.test.echo conflict"] {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %v", seen)
		}
	}
}

func TestTheMethodsTimeoutIsTheMost(t *testing.T) {
	short := echo
	short.Timeout = 150 * time.Millisecond
	_, conn, _ := serve(t, rpc.Options{}, func(ctx context.Context, _ ask) (answer, error) {
		time.Sleep(400 * time.Millisecond)
		return answer{}, nil
	})
	_, err := rpc.Client(conn, short)(t.Context(), ask{})
	wantFault(t, err, fault.Timeout, "service_timeout")
}

func TestCancelledCallersLeaveAtOnce(t *testing.T) {
	release := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	_, conn, _ := serve(t, rpc.Options{}, func(context.Context, ask) (answer, error) {
		cancel()
		<-release
		return answer{}, nil
	})
	defer close(release)
	start := time.Now()
	_, err := rpc.Client(conn, echo)(ctx, ask{})
	wantFault(t, err, fault.Unavailable, "canceled")
	if time.Since(start) > quick {
		t.Error("it waited")
	}
}

// A NATS subscription delivers one message at a time: 5 calls must be in their handlers together.
func TestCallsRunInParallel(t *testing.T) {
	var in sync.WaitGroup
	in.Add(5)
	_, conn, _ := serve(t, rpc.Options{}, func(ctx context.Context, _ ask) (answer, error) {
		in.Done()
		all := make(chan struct{})
		go func() { in.Wait(); close(all) }()
		select {
		case <-all:
			return answer{}, nil
		case <-ctx.Done():
			return answer{}, ctx.Err()
		}
	})
	call := rpc.Client(conn, echo)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if _, err := call(t.Context(), ask{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// The pool is bounded, its overflow is answered, and the methods beside it still are.
func TestAFullPoolAnswersBusy(t *testing.T) {
	var running, most atomic.Int32
	release := make(chan struct{})
	_, conn, _ := serve(t, rpc.Options{Workers: 2}, func(ctx context.Context, _ ask) (answer, error) {
		for n := running.Add(1); ; {
			if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		defer running.Add(-1)
		<-release
		return answer{}, nil
	})
	call := rpc.Client(conn, echo)
	var ok, busy atomic.Int32
	var wg sync.WaitGroup
	start := time.Now()
	for range 40 {
		wg.Go(func() {
			_, err := call(t.Context(), ask{})
			switch {
			case err == nil:
				ok.Add(1)
			case fault.From(err).Code == "busy":
				if busy.Add(1) == 38 {
					close(release)
				}
				if time.Since(start) > 2*quick {
					t.Error("busy came late")
				}
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if most.Load() != 2 || ok.Load() != 2 || busy.Load() != 38 {
		t.Errorf("%d at once, %d answered, %d busy", most.Load(), ok.Load(), busy.Load())
	}
	if _, err := call(t.Context(), ask{}); err != nil {
		t.Error("the pool did not recover:", err)
	}
}

// Drain does not wait for handlers' goroutines; Shutdown does, and what was taken is answered.
func TestShutdownAnswersWhatWasTaken(t *testing.T) {
	url := natstest.New(t)
	s := rpc.NewServer(connect(t, url), rpc.Options{Service: "test"})
	taken := make(chan struct{}, 3)
	rpc.Serve(s, echo, func(ctx context.Context, r ask) (answer, error) {
		taken <- struct{}{}
		time.Sleep(300 * time.Millisecond)
		return same(ctx, r)
	})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	call := rpc.Client(connect(t, url), echo)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, err := call(t.Context(), ask{Text: "x"}); err != nil {
				t.Error(err)
			}
		})
	}
	for range 3 {
		<-taken
	}
	start := time.Now()
	if err := s.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 100*time.Millisecond || took > quick {
		t.Errorf("it took %v", took)
	}
	wg.Wait()
	_, err := call(t.Context(), ask{})
	wantFault(t, err, fault.Unavailable, "service_unavailable")
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error("a second shutdown:", err)
	}
}

func TestShutdownLosesPatience(t *testing.T) {
	url := natstest.New(t)
	s := rpc.NewServer(connect(t, url), rpc.Options{Service: "test"})
	taken, ended := make(chan struct{}), make(chan struct{})
	rpc.Serve(s, echo, func(ctx context.Context, r ask) (answer, error) {
		close(taken)
		<-ctx.Done()
		close(ended)
		return answer{}, ctx.Err()
	})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = rpc.Client(connect(t, url), echo)(t.Context(), ask{}) }()
	<-taken
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 requests") {
		t.Fatalf("got %v", err)
	}
	select {
	case <-ended:
	case <-time.After(quick):
		t.Fatal("the handler was not told")
	}
}

func TestShutdownWithoutNATS(t *testing.T) {
	for name, lose := range map[string]func(*natstest.Server, *nats.Conn){
		"connection closed": func(_ *natstest.Server, c *nats.Conn) { c.Close() },
		"server gone":       func(s *natstest.Server, _ *nats.Conn) { s.Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			n := natstest.Start(t)
			conn := connect(t, n.URL())
			s := rpc.NewServer(conn, rpc.Options{Service: "test"})
			rpc.Serve(s, echo, same)
			if err := s.Start(); err != nil {
				t.Fatal(err)
			}
			lose(n, conn)
			ctx, cancel := context.WithTimeout(t.Context(), quick)
			defer cancel()
			start := time.Now()
			if err := s.Shutdown(ctx); err != nil {
				t.Errorf("%v after %v", err, time.Since(start))
			}
		})
	}
}

func TestPayloadLimits(t *testing.T) {
	_, conn, _ := serve(t, rpc.Options{}, func(_ context.Context, r ask) (answer, error) {
		return answer{Text: strings.Repeat("x", r.N)}, nil
	}, natstest.MaxPayload(4096))
	call := rpc.Client(conn, echo)
	_, err := call(t.Context(), ask{Text: strings.Repeat("x", 5000)})
	wantFault(t, err, fault.TooLarge, "request_too_large")
	_, err = call(t.Context(), ask{N: 5000})
	wantFault(t, err, fault.TooLarge, "response_too_large")
	for n := 3900; n < 4200; n++ { // around the limit: an answer or a fault, never silence
		if _, err = call(t.Context(), ask{N: n}); err != nil {
			wantFault(t, err, fault.TooLarge, "response_too_large")
		}
		if _, err = call(t.Context(), ask{Text: strings.Repeat("x", n)}); err != nil {
			wantFault(t, err, fault.TooLarge, "request_too_large")
		}
	}
}

func TestReplicasShareTheWork(t *testing.T) {
	url := natstest.New(t)
	var count [2]atomic.Int32
	for i := range count {
		s := rpc.NewServer(connect(t, url), rpc.Options{Service: "test"})
		rpc.Serve(s, echo, func(context.Context, ask) (answer, error) { count[i].Add(1); return answer{}, nil })
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Shutdown(context.Background()) })
	}
	call := rpc.Client(connect(t, url), echo)
	for range 100 {
		if _, err := call(t.Context(), ask{}); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := count[0].Load(), count[1].Load(); a+b != 100 || a == 0 || b == 0 {
		t.Errorf("%d and %d", a, b)
	}
}

func TestNATSGoesAndComesBack(t *testing.T) {
	n := natstest.Start(t)
	conn, server := connect(t, n.URL()), connect(t, n.URL())
	s := rpc.NewServer(server, rpc.Options{Service: "test"})
	rpc.Serve(s, echo, same)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Shutdown(context.Background()) }()
	call := rpc.Client(conn, echo)
	if _, err := call(t.Context(), ask{}); err != nil {
		t.Fatal(err)
	}
	n.Stop()
	for conn.IsConnected() {
		time.Sleep(5 * time.Millisecond)
	}
	start := time.Now()
	_, err := call(t.Context(), ask{})
	wantFault(t, err, fault.Unavailable, "service_unavailable")
	if time.Since(start) > quick {
		t.Errorf("it took %v to know that NATS is away", time.Since(start))
	}
	n.Restart(t)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if _, err = call(t.Context(), ask{}); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestConnect(t *testing.T) {
	n := natstest.Start(t)
	n.Stop()
	log := &lines{}
	done := make(chan error, 1)
	go func() {
		c, err := rpc.Connect(t.Context(), rpc.NATS{NATSURL: n.URL()}, "late", telemetry.NewLogger(log, "text", "info"))
		if err == nil {
			c.Close()
		}
		done <- err
	}()
	time.Sleep(200 * time.Millisecond)
	n.Restart(t)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "NATS cannot be reached yet") {
		t.Errorf("it waited without a word: %s", log)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := rpc.Connect(ctx, rpc.NATS{NATSURL: "nats://u:hunter2@127.0.0.1:1"}, "x", slog.New(slog.DiscardHandler)); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
	for _, bad := range []string{"", "127.0.0.1:4222", "http://x", "nats://u:hunter2@h:port"} {
		if _, err := rpc.Connect(t.Context(), rpc.NATS{NATSURL: bad}, "x", slog.New(slog.DiscardHandler)); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: got %v", bad, err)
		}
	}
}

func TestStartRefusesWrongMethods(t *testing.T) {
	conn := connect(t, natstest.New(t))
	for name, m := range map[string]contract.Method[ask, answer]{
		"other service": {Subject: "kubebyon.v1.elsewhere.echo", Timeout: time.Second},
		"wildcard":      {Subject: "kubebyon.v1.test.*", Timeout: time.Second},
		"blank":         {Subject: "kubebyon.v1.test.a b", Timeout: time.Second},
		"no timeout":    {Subject: "kubebyon.v1.test.echo"},
	} {
		s := rpc.NewServer(conn, rpc.Options{Service: "test"})
		rpc.Serve(s, m, same)
		if err := s.Start(); err == nil {
			t.Errorf("%s: started", name)
		}
	}
	s := rpc.NewServer(conn, rpc.Options{Service: "test"})
	rpc.Serve(s, echo, same)
	rpc.Serve(s, echo, same)
	if err := s.Start(); err == nil {
		t.Error("a method served twice: started")
	}
}
