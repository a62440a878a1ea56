package natsauth_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/kubebyon/kubebyon/pkg/contract"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/contract/nodev1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/natsauth"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
)

// bus is a NATS server with the services' users.
type bus struct {
	t    *testing.T
	at   map[natsauth.Service]rpc.NATS
	mu   sync.Mutex
	said map[natsauth.Service][]string // what the server refused
}

func newBus(t *testing.T) *bus {
	t.Helper()
	b := &bus{t: t, at: map[natsauth.Service]rpc.NATS{}, said: map[natsauth.Service][]string{}}
	text := config(t, b.at, nil)
	url := natstest.New(t, func(o *server.Options) {
		if err := o.ProcessConfigString(text); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
	})
	for s, to := range b.at {
		to.NATSURL = url
		b.at[s] = to
	}
	return b
}

// config makes a seed for each service and the server's configuration.
func config(t *testing.T, at map[natsauth.Service]rpc.NATS, tls *natsauth.TLS) string {
	t.Helper()
	dir, public := t.TempDir(), map[natsauth.Service]string{}
	for _, s := range natsauth.Services() {
		seed, err := natsauth.NewSeed()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, string(s))
		if err := os.WriteFile(file, seed, 0o600); err != nil {
			t.Fatal(err)
		}
		if public[s], err = natsauth.PublicKey(seed); err != nil {
			t.Fatal(err)
		}
		at[s] = rpc.NATS{NATSNKeyFile: file}
	}
	text, err := natsauth.ServerConfig(public, tls)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// as connects as a service does.
func (b *bus) as(s natsauth.Service) *nats.Conn {
	b.t.Helper()
	conn, err := rpc.Connect(b.t.Context(), b.at[s], s.ConnectionName(), slog.New(slog.DiscardHandler))
	if err != nil {
		b.t.Fatal(err)
	}
	conn.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.said[s] = append(b.said[s], err.Error())
	})
	b.t.Cleanup(conn.Close)
	return conn
}

// refused waits for what the server says to s about doing that on the subject.
func (b *bus) refused(s natsauth.Service, what, subject string) bool {
	want := "Permissions Violation for " + what + " to \"" + subject + "\""
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		b.mu.Lock()
		found := slices.ContainsFunc(b.said[s], func(line string) bool { return strings.Contains(strings.ToLower(line), strings.ToLower(want)) })
		b.mu.Unlock()
		if found {
			return true
		}
	}
	return false
}

// answer serves every method of s's row with an empty object.
func answer(t *testing.T, conn *nats.Conn, s natsauth.Service) {
	t.Helper()
	server := rpc.NewServer(conn, rpc.Options{Service: string(s)})
	for _, subject := range natsauth.Of(s).Serves {
		if strings.HasSuffix(subject, ".ping") {
			continue
		}
		rpc.Serve(server, contract.Method[struct{}, struct{}]{Subject: subject, Timeout: 5 * time.Second},
			func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil })
	}
	if err := server.Start(); err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	t.Cleanup(func() {
		if err := server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// TestEachServiceMayDoWhatItDoes has every call of every row answered, and every event heard.
func TestEachServiceMayDoWhatItDoes(t *testing.T) {
	b := newBus(t)
	conns := map[natsauth.Service]*nats.Conn{}
	for _, s := range natsauth.Services() {
		conns[s] = b.as(s)
		if len(natsauth.Of(s).Serves) > 0 {
			answer(t, conns[s], s)
		}
	}
	calls := 0
	for _, s := range natsauth.Services() {
		for _, subject := range natsauth.Of(s).Calls {
			m := contract.Method[struct{}, map[string]any]{Subject: subject, Timeout: 5 * time.Second}
			if _, err := rpc.Client(conns[s], m)(t.Context(), struct{}{}); err != nil {
				t.Errorf("%s calls %s: %v", s, subject, err)
			}
			calls++
		}
	}
	if calls < 20 {
		t.Errorf("only %d calls", calls)
	}
	heard := make(chan string, 1)
	stop, err := rpc.Subscribe(conns[natsauth.Edge], clusterv1.Changed, slog.New(slog.DiscardHandler), func(e clusterv1.ChangedEvent) { heard <- e.ID })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := conns[natsauth.Edge].Flush(); err != nil {
		t.Fatal(err)
	}
	rpc.Publish(conns[natsauth.Cluster], clusterv1.Changed, slog.New(slog.DiscardHandler))(clusterv1.ChangedEvent{ID: "cl_x"})
	select {
	case <-heard:
	case <-time.After(10 * time.Second):
		t.Error("the event is not heard")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for s, said := range b.said {
		t.Errorf("%s was refused something: %q", s, said)
	}
}

// TestNobodyMayDoMore goes over every service and every subject that is not its own.
func TestNobodyMayDoMore(t *testing.T) {
	b := newBus(t)
	var all []string
	for _, s := range natsauth.Services() {
		row := natsauth.Of(s)
		all = append(all, slices.Concat(row.Serves, row.Publishes)...)
	}
	for _, s := range natsauth.Services() {
		conn, row := b.as(s), natsauth.Of(s)
		mayPublish := slices.Concat(row.Calls, row.Publishes)
		for _, subject := range append(all, "kubebyon.v1.cluster.unheard_of", "anything", "$SYS.REQ.SERVER.PING") {
			if !slices.Contains(mayPublish, subject) {
				if err := conn.Publish(subject, []byte("{}")); err != nil || !b.refused(s, "Publish", subject) {
					t.Errorf("%s may publish to %s (%v)", s, subject, err)
				}
			}
			queue := string(s) // its own queue group does not help with others' subjects, nor another's with its own
			if slices.Contains(row.Serves, subject) {
				queue = "other"
			}
			if slices.Contains(row.Listens, subject) {
				continue
			}
			if _, err := conn.QueueSubscribeSync(subject, queue); err != nil || !b.refused(s, "Subscription", subject) {
				t.Errorf("%s may subscribe to %s in the queue group %s (%v)", s, subject, queue, err)
			}
		}
		wide := []string{">", "kubebyon.>", "kubebyon.v1.*.get", "_INBOX.>", "*.>"}
		for _, other := range natsauth.Services() {
			if other != s {
				wide = append(wide, rpc.InboxPrefix(other.ConnectionName())+".>", "kubebyon.v1."+string(other)+".*")
			}
		}
		for _, subject := range wide {
			if _, err := conn.SubscribeSync(subject); err != nil || !b.refused(s, "Subscription", subject) {
				t.Errorf("%s may subscribe to %s (%v)", s, subject, err)
			}
		}
		if err := conn.Publish(rpc.InboxPrefix("kubebyon-other")+".x", nil); err != nil || !b.refused(s, "Publish", rpc.InboxPrefix("kubebyon-other")+".x") {
			t.Errorf("%s may write to anybody's inbox (%v)", s, err)
		}
	}
}

// TestTheNodeServiceCannotPassForAnother is what somebody with the node service's key would try.
func TestTheNodeServiceCannotPassForAnother(t *testing.T) {
	b := newBus(t)
	answer(t, b.as(natsauth.Cluster), natsauth.Cluster)
	node, gateway := b.as(natsauth.Node), b.as(natsauth.Gateway)

	remove := clusterv1.Delete
	remove.Timeout = 300 * time.Millisecond
	if _, err := rpc.Client(node, remove)(t.Context(), clusterv1.DeleteRequest{ID: "cl_x"}); !fault.Is(err, fault.Timeout) || !b.refused(natsauth.Node, "Publish", remove.Subject) {
		t.Errorf("it deletes a cluster: %v", err)
	}

	// It may answer what it was asked, where it was asked to, and once.
	asked := make(chan string, 1)
	if _, err := node.QueueSubscribe(nodev1.List.Subject, nodev1.Queue, func(msg *nats.Msg) {
		_ = msg.Respond([]byte("first"))
		asked <- msg.Reply
	}); err != nil {
		t.Fatal(err)
	}
	if err := node.Flush(); err != nil {
		t.Fatal(err)
	}
	reply, err := gateway.Request(nodev1.List.Subject, nil, 10*time.Second)
	if err != nil || string(reply.Data) != "first" {
		t.Fatalf("%v, %v", reply, err)
	}
	to := <-asked
	if err := node.Publish(to, []byte("second")); err != nil || !b.refused(natsauth.Node, "Publish", to) {
		t.Errorf("it answers twice (%v)", err)
	}

	// A service that would answer for another does not even start.
	impostor := rpc.NewServer(node, rpc.Options{Service: "cluster", Queue: clusterv1.Queue})
	if err := impostor.Start(); !errors.Is(err, nats.ErrPermissionViolation) {
		t.Errorf("it answers for the cluster service: %v", err)
	}
}

func TestWhoHasNoKeyIsNobody(t *testing.T) {
	b := newBus(t)
	quiet := slog.New(slog.DiscardHandler)
	url := b.at[natsauth.Node].NATSURL
	stranger, err := natsauth.NewSeed()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "seed")
	if err := os.WriteFile(file, stranger, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, to := range map[string]rpc.NATS{"no key": {NATSURL: url}, "a key that the server does not know": {NATSURL: url, NATSNKeyFile: file}} {
		if _, err := rpc.Connect(t.Context(), to, "kubebyon-node", quiet); err == nil || !strings.Contains(err.Error(), "refused our credentials") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestEveryMethodIsAnsweredInTime(t *testing.T) {
	for _, timeout := range []time.Duration{clusterv1.Kubectl.Timeout, clusterv1.Kubeconfig.Timeout, nodev1.List.Timeout} {
		if timeout > natsauth.AnswerTime/2 {
			t.Errorf("a method may take %s, and an answer is let through for %s", timeout, natsauth.AnswerTime)
		}
	}
}

func TestConfigurationsThatAreNone(t *testing.T) {
	if _, err := natsauth.ServerConfig(map[natsauth.Service]string{natsauth.Gateway: "UA"}, nil); err == nil {
		t.Error("a configuration without keys")
	}
	if _, err := natsauth.PublicKey([]byte("SUAhunter2hunter2")); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v", err)
	}
	account := "SAAGXXVCH55Q2AUSTFBVNQNLBDRPPHRMLZMR2ZSN2CEYQSMCNH2BMLWOXY"
	if _, err := natsauth.PublicKey([]byte(account)); err == nil {
		t.Error("an account's seed is taken for a user's")
	}
}
