package rpc_test

import (
	"log/slog"
	"testing"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
)

func TestEvents(t *testing.T) {
	url, log := natstest.New(t), slog.New(slog.DiscardHandler)
	happened := contract.Event[ask]{Subject: "kubebyon.v1.test.happened"}
	teller, err := rpc.Connect(t.Context(), rpc.NATS{NATSURL: url}, "teller", log)
	if err != nil {
		t.Fatal(err)
	}
	defer teller.Close()
	listener, err := rpc.Connect(t.Context(), rpc.NATS{NATSURL: url}, "listener", log)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	first, second := make(chan string, 10), make(chan string, 10)
	var stops []func()
	for _, heard := range []chan string{first, second} { // two replicas hear it both
		stop, err := rpc.Subscribe(listener, happened, log, func(a ask) { heard <- a.Text })
		if err != nil {
			t.Fatal(err)
		}
		stops = append(stops, stop)
	}
	if err := listener.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := teller.Publish(happened.Subject, []byte("{")); err != nil { // no event of ours, and no end of it
		t.Fatal(err)
	}
	tell := rpc.Publish(teller, happened, log)
	tell(ask{Text: "one"})
	for _, heard := range []chan string{first, second} {
		if got := <-heard; got != "one" {
			t.Errorf("%q", got)
		}
	}
	stops[0]()
	if err := listener.Flush(); err != nil {
		t.Fatal(err)
	}
	tell(ask{Text: "two"})
	if got := <-second; got != "two" {
		t.Errorf("%q", got)
	}
	if len(first) > 0 {
		t.Error("it hears after its end")
	}
	teller.Close()
	tell(ask{Text: "lost"}) // and nothing breaks
}
