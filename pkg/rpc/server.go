package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-kit/kit/endpoint"
	"github.com/nats-io/nats.go"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

const (
	defaultWorkers = 64
	waitersPerSlot = 4                      // requests that may wait for each worker
	busyWait       = 500 * time.Millisecond // and for how long
	flushTimeout   = 5 * time.Second
	lookAfter      = 50 * time.Millisecond // how often Shutdown looks whether NATS is still there
)

// Options describe a service's server.
type Options struct {
	Service string // the <service> of kubebyon.v1.<service>.<method>
	Queue   string // the queue group that its replicas share; empty means Service
	Version string // what ping answers
	// Workers bounds how many requests are handled at once, over all methods; 0 means 64. Four times as many more wait,
	// each for at most half a second; beyond that the answer is unavailable, busy.
	Workers int
	Log     *slog.Logger
}

// Server answers a service's methods. Make it with NewServer, add methods with Serve, then Start and, once, Shutdown.
//
//	new ──Serve*──▶ new ──Start──▶ serving ──Shutdown──▶ draining ──▶ stopped
type Server struct {
	conn    *nats.Conn
	o       Options
	slots   chan struct{}   // one per worker
	room    chan struct{}   // one per worker and waiter
	handler context.Context //nolint:containedctx // the parent of every handler's; Shutdown ends it
	cancel  context.CancelFunc

	mu      sync.Mutex
	methods []method
	subs    []*nats.Subscription
	closed  sync.WaitGroup // subscriptions that may still deliver
	active  sync.WaitGroup // requests taken and not yet answered
	started bool
	wrong   error // what Serve had to say; Start returns it
}

type method struct {
	subject string
	timeout time.Duration
	call    endpoint.Endpoint // incoming -> []byte
}

// incoming is what a server's endpoint gets.
type incoming struct {
	data []byte
	bad  *fault.Error // of the headers
}

// NewServer makes a server that answers ping and nothing else yet. It does not own conn.
func NewServer(conn *nats.Conn, o Options) *Server {
	if o.Queue == "" {
		o.Queue = o.Service
	}
	if o.Workers <= 0 {
		o.Workers = defaultWorkers
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{conn: conn, o: o, slots: make(chan struct{}, o.Workers), room: make(chan struct{}, o.Workers*(1+waitersPerSlot))}
	s.handler, s.cancel = context.WithCancel(context.Background())
	Serve(s, contract.Method[contract.Ping, contract.Pong]{Subject: prefix(o.Service) + "ping", Timeout: time.Second},
		func(context.Context, contract.Ping) (contract.Pong, error) {
			return contract.Pong{Service: o.Service, Version: o.Version}, nil
		})
	return s
}

// Serve adds a method before Start. handle's context has the caller's deadline (at most m.Timeout), trace and principal,
// and ends when Shutdown loses patience. What handle returns that is no *fault.Error reaches the caller as internal,
// without its text; the log has that.
func Serve[Req, Res any](s *Server, m contract.Method[Req, Res], handle func(context.Context, Req) (Res, error)) {
	call := newSide(oteltrace.SpanKindServer, m.Subject, m.Timeout, s.o.Log).chain()(
		func(ctx context.Context, request any) (any, error) {
			in := request.(incoming)
			if in.bad != nil {
				return nil, in.bad
			}
			var req Req
			if err := strict(in.data, &req); err != nil {
				return nil, unreadable(err)
			}
			res, err := handle(ctx, req)
			if err != nil {
				return nil, err
			}
			data, err := json.Marshal(res)
			if err != nil {
				return nil, fmt.Errorf("%s: the answer cannot be encoded: %w", m.Subject, err)
			}
			if limit := s.conn.MaxPayload(); limit > 0 && int64(len(data)+headerSize(okHeader())) > limit {
				return nil, responseTooLarge(len(data), limit)
			}
			return data, nil
		})
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.started:
		s.wrong = errors.Join(s.wrong, fmt.Errorf("rpc: %s was added after Start", m.Subject))
		s.o.Log.Error("a method was added after the start and is not served", slog.String("method", m.Subject))
		return
	case !validSubject(s.o.Service, m.Subject):
		s.wrong = errors.Join(s.wrong, fmt.Errorf("rpc: %q is no method of the service %q", m.Subject, s.o.Service))
	case m.Timeout <= 0:
		s.wrong = errors.Join(s.wrong, fmt.Errorf("rpc: %s has no timeout", m.Subject))
	}
	for i, have := range s.methods {
		if have.subject == m.Subject {
			if m.Subject == prefix(s.o.Service)+"ping" { // a service may answer ping itself
				s.methods[i] = method{m.Subject, m.Timeout, call}
				return
			}
			s.wrong = errors.Join(s.wrong, fmt.Errorf("rpc: %s is served twice", m.Subject))
		}
	}
	s.methods = append(s.methods, method{m.Subject, m.Timeout, call})
}

// Start subscribes to every method; when it returns the NATS server knows. It fails for what was wrong with a Serve, where
// NATS cannot be reached, and where it does not allow a subscription.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started {
		return errors.New("rpc: started twice")
	}
	if s.wrong != nil {
		return s.wrong
	}
	s.started = true
	for _, m := range s.methods {
		s.closed.Add(1)
		sub, err := s.conn.QueueSubscribe(m.subject, s.o.Queue, func(msg *nats.Msg) { s.take(m, msg) })
		if err != nil {
			s.closed.Done()
			return fmt.Errorf("rpc: %s: %w", m.subject, err)
		}
		closed := sync.OnceFunc(s.closed.Done)
		sub.SetClosedHandler(func(string) { closed() })
		s.subs = append(s.subs, sub)
	}
	if err := s.conn.FlushTimeout(flushTimeout); err != nil {
		return fmt.Errorf("rpc: the subscriptions cannot be made: %w", err)
	}
	// The server refuses beside the answers to what it is asked, and before it answers the flush.
	if err := s.conn.LastError(); errors.Is(err, nats.ErrPermissionViolation) {
		return fmt.Errorf("rpc: the NATS server's configuration is not of this version: %w", err)
	}
	return nil
}

// take runs on the subscription's own goroutine, which delivers one message at a time: it must not wait.
func (s *Server) take(m method, msg *nats.Msg) {
	if msg.Reply == "" {
		return // nobody would learn what became of it
	}
	select {
	case s.room <- struct{}{}:
	default:
		s.answer(m, msg, errorReply(busy()))
		return
	}
	s.active.Add(1)
	received := time.Now()
	go func() {
		defer s.active.Done()
		defer func() { <-s.room }()
		s.handle(m, msg, received)
	}()
}

func (s *Server) handle(m method, msg *nats.Msg, received time.Time) {
	ctx, timeout, bad := fromHeader(s.handler, msg.Header, m.timeout)
	ctx, cancel := context.WithDeadline(ctx, received.Add(timeout))
	defer cancel()

	wait := time.NewTimer(busyWait)
	defer wait.Stop()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		s.answer(m, msg, errorReply(busy()))
		return
	case <-wait.C:
		s.answer(m, msg, errorReply(busy()))
		return
	}
	response, err := m.call(ctx, incoming{data: msg.Data, bad: bad})
	if err != nil {
		s.answer(m, msg, errorReply(fault.From(err)))
		return
	}
	s.answer(m, msg, &nats.Msg{Header: okHeader(), Data: response.([]byte)})
}

func (s *Server) answer(m method, msg, reply *nats.Msg) {
	reply.Subject = msg.Reply
	err := s.conn.PublishMsg(reply)
	if errors.Is(err, nats.ErrMaxPayload) { // the limit shrank with a reconnect, or an error was over a tiny one
		reply = errorReply(responseTooLarge(len(reply.Data), s.conn.MaxPayload()))
		reply.Subject = msg.Reply
		err = s.conn.PublishMsg(reply)
	}
	if err != nil {
		s.o.Log.Warn("an answer could not be sent", slog.String("method", m.subject), slog.String("error", err.Error()))
	}
}

// Shutdown stops taking requests, waits until those taken are answered, and sees the answers to the NATS server. When ctx
// ends first it cancels the handlers and returns ctx's error without waiting for them longer.
func (s *Server) Shutdown(ctx context.Context) error {
	defer s.cancel()
	s.mu.Lock()
	subs := s.subs
	s.subs = nil
	s.mu.Unlock()
	var errs []error
	for _, sub := range subs {
		// Drain delivers what has arrived already; only then is the subscription closed.
		if err := sub.Drain(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrBadSubscription) {
			errs = append(errs, fmt.Errorf("rpc: drain %s: %w", sub.Subject, err))
		}
	}
	done := make(chan struct{})
	go func() { // ends with the handlers, which s.cancel tells to
		defer close(done)
		s.closed.Wait()
		s.active.Wait()
	}()
	look := time.NewTicker(lookAfter)
	defer look.Stop()
	for waiting := true; waiting; {
		select {
		case <-done:
			waiting = false
		case <-ctx.Done():
			return errors.Join(append(errs, fmt.Errorf("rpc: %d requests were still being handled: %w", len(s.room), context.Cause(ctx)))...)
		case <-look.C:
			if s.conn.IsConnected() {
				continue
			}
			for _, sub := range subs { // a drain would wait for the server to come back, and nobody could be answered
				_ = sub.Unsubscribe()
			}
		}
	}
	if !s.conn.IsClosed() && s.conn.IsConnected() {
		ctx, cancel := context.WithTimeout(ctx, flushTimeout)
		defer cancel()
		if err := s.conn.FlushWithContext(ctx); err != nil {
			errs = append(errs, fmt.Errorf("rpc: the last answers may not have been sent: %w", err))
		}
	}
	return errors.Join(errs...)
}

func okHeader() nats.Header { return nats.Header{headerStatus: {statusOK}} }

func busy() *fault.Error {
	return fault.New(fault.Unavailable, "busy", "too many requests are being handled at once").Do("try again in a moment")
}

func responseTooLarge(size int, limit int64) *fault.Error {
	return fault.New(fault.TooLarge, "response_too_large", "the answer has %d bytes; at most %d can be sent", size, limit).
		Do("ask for less at once, with a limit where there is one")
}

// unreadable names what was wrong with a request, in JSON's terms and not in Go's.
func unreadable(err error) *fault.Error {
	const code = "request_malformed"
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) && wrongType.Field != "" {
		return fault.New(fault.Invalid, code, "%s cannot be a JSON %s", wrongType.Field, wrongType.Value).In(wrongType.Field).Because(err)
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		name := clip(strings.Trim(field, `"`))
		return fault.New(fault.Invalid, code, "%q is no field of this request", name).In(name).Because(err)
	}
	return fault.New(fault.Invalid, code, "the request is not the JSON object that it should be").Because(err)
}
