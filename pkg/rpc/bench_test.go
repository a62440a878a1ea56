package rpc_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
)

// BenchmarkCall against a bare NATS request of the same size shows what the chain costs.
func BenchmarkCall(b *testing.B) {
	url := natstest.New(b)
	server, err := rpc.Connect(b.Context(), rpc.NATS{NATSURL: url}, "server", slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	client, err := rpc.Connect(b.Context(), rpc.NATS{NATSURL: url}, "client", slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	s := rpc.NewServer(server, rpc.Options{Service: "test"})
	rpc.Serve(s, echo, same)
	if err := s.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Shutdown(b.Context()) }()
	call := rpc.Client(client, echo)
	ctx := rpc.WithPrincipal(b.Context(), contract.Principal{UserID: "usr_1", Role: contract.RoleUser})
	req := ask{Text: strings.Repeat("x", 1000)}
	for b.Loop() {
		if _, err := call(ctx, req); err != nil {
			b.Fatal(err)
		}
	}
}
