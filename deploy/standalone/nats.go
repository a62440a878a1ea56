package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/kubebyon/kubebyon/pkg/natsauth"
	"github.com/kubebyon/kubebyon/pkg/rpc"
)

// maxPayload in bytes; the same as a NATS server's default, so that nothing works here that fails when split.
const maxPayload = 1 << 20

// bus is a NATS server that listens nowhere: its only clients are connections made by connect. Each part has its own user, as in
// a process of its own, so that nothing is allowed here that is refused when split. The keys live as long as the process.
type bus struct {
	server *server.Server
	keys   map[natsauth.Service]nkeys.KeyPair
}

func startNATS() (*bus, error) {
	b := &bus{keys: map[natsauth.Service]nkeys.KeyPair{}}
	public := map[natsauth.Service]string{}
	for _, service := range natsauth.Services() {
		key, err := nkeys.CreateUser()
		if err != nil {
			return nil, fmt.Errorf("a key for the embedded NATS server: %w", err)
		}
		if public[service], err = key.PublicKey(); err != nil {
			return nil, fmt.Errorf("a key for the embedded NATS server: %w", err)
		}
		b.keys[service] = key
	}
	users, err := natsauth.ServerConfig(public, nil)
	if err != nil {
		return nil, err
	}
	var options server.Options
	if err := options.ProcessConfigString(users); err != nil {
		return nil, fmt.Errorf("the embedded NATS server's users: %w", err)
	}
	options.ServerName, options.DontListen, options.NoSigs, options.NoLog, options.MaxPayload = "kubebyon-api", true, true, true, maxPayload
	if b.server, err = server.NewServer(&options); err != nil {
		return nil, err
	}
	b.server.Start()
	if !b.server.ReadyForConnections(10 * time.Second) {
		b.server.Shutdown()
		return nil, errors.New("the embedded NATS server did not start within 10 s")
	}
	return b, nil
}

func (b *bus) stop() {
	b.server.Shutdown()
	b.server.WaitForShutdown()
}

// connect gives one part its own connection, as it would have in a process of its own.
func (b *bus) connect(ctx context.Context, service natsauth.Service, log *slog.Logger) (*nats.Conn, error) {
	key, name := b.keys[service], service.ConnectionName()
	public, err := key.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("connecting %s to the embedded NATS server: %w", service, err)
	}
	conn, err := nats.Connect("", nats.InProcessServer(b.server), nats.Nkey(public, key.Sign), nats.Name(name),
		nats.CustomInboxPrefix(rpc.InboxPrefix(name)), nats.MaxReconnects(-1),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			log.WarnContext(ctx, "NATS reports an error", slog.String("connection", name), slog.Any("error", err))
		}))
	if err != nil {
		return nil, fmt.Errorf("connecting %s to the embedded NATS server: %w", service, err)
	}
	return conn, nil
}
