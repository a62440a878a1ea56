package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// startNATS runs a NATS server that listens nowhere: its only clients are connections made by connect.
func startNATS() (*server.Server, error) {
	bus, err := server.NewServer(&server.Options{
		ServerName: "kubebyon-api", DontListen: true, NoSigs: true, NoLog: true,
		MaxPayload: maxPayload,
	})
	if err != nil {
		return nil, err
	}
	bus.Start()
	if !bus.ReadyForConnections(10 * time.Second) {
		bus.Shutdown()
		return nil, errors.New("the embedded NATS server did not start within 10 s")
	}
	return bus, nil
}

// maxPayload in bytes; the same as a NATS server's default, so that nothing works here that fails when split.
const maxPayload = 1 << 20

// connect gives one part its own connection, as it would have in a process of its own.
func connect(ctx context.Context, bus *server.Server, name string, log *slog.Logger) (*nats.Conn, error) {
	conn, err := nats.Connect("", nats.InProcessServer(bus), nats.Name(name), nats.MaxReconnects(-1),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			log.WarnContext(ctx, "NATS reports an error", slog.String("connection", name), slog.Any("error", err))
		}))
	if err != nil {
		return nil, fmt.Errorf("connecting %s to the embedded NATS server: %w", name, err)
	}
	return conn, nil
}
