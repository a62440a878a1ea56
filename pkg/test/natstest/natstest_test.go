package natstest_test

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/kubebyon/kubebyon/pkg/test/natstest"
)

func TestServers(t *testing.T) {
	s := natstest.Start(t, natstest.MaxPayload(1000))
	if s.URL() == natstest.New(t) {
		t.Fatal("two servers with one address")
	}
	c, err := nats.Connect(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Publish("x", make([]byte, 2000)); !errors.Is(err, nats.ErrMaxPayload) {
		t.Fatalf("got %v", err)
	}
	s.Stop()
	if _, err := nats.Connect(s.URL()); err == nil {
		t.Fatal("a stopped server answered")
	}
	s.Restart(t)
	again, err := nats.Connect(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}
