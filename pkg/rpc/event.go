package rpc

import (
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go"

	"github.com/kubebyon/kubebyon/pkg/contract"
)

// Publish gives e as a function that tells everybody who listens now, and never waits: while NATS is away the event is lost,
// which its listeners are prepared for.
func Publish[T any](conn *nats.Conn, e contract.Event[T], log *slog.Logger) func(T) {
	return func(event T) {
		data, err := json.Marshal(event)
		if err == nil {
			err = conn.Publish(e.Subject, data)
		}
		if err != nil {
			log.Warn("an event could not be published", slog.String("subject", e.Subject), slog.Any("error", err))
		}
	}
}

// Subscribe calls handle for every event, one at a time and each replica for itself, until stop was called. What is no T is
// logged and dropped.
func Subscribe[T any](conn *nats.Conn, e contract.Event[T], log *slog.Logger, handle func(T)) (stop func(), err error) {
	sub, err := conn.Subscribe(e.Subject, func(msg *nats.Msg) {
		var event T
		if err := json.Unmarshal(msg.Data, &event); err != nil {
			log.Warn("an event could not be read", slog.String("subject", e.Subject), slog.Any("error", err))
			return
		}
		handle(event)
	})
	if err != nil {
		return nil, fmt.Errorf("rpc: %s: %w", e.Subject, err)
	}
	return func() { _ = sub.Unsubscribe() }, nil
}
