package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubebyon/kubebyon/deploy/apiclient"
	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
	"github.com/kubebyon/kubebyon/deploy/devhost/machine"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

const adminEmail = "admin@kubebyon.local"

// stack is everything that the run stands on.
type stack struct {
	layout        layout.Layout
	root          string // of the source tree
	out           io.Writer
	adminPassword string
	database      *pgtest.Server
	host          kubernetes.Interface
	hostConfig    *rest.Config
	running       []*process
	split         map[string]*process // the five, by name, once they run
	api           *client             // whichever serves now
}

// programs are the product's binaries and what they are built from.
var programs = map[string]string{
	"kubebyon-api": "./deploy/standalone", "kubebyon-gateway": "./gateway",
	"kubebyon-cluster": "./services/cluster", "kubebyon-token": "./services/token",
	"kubebyon-node": "./services/node", "kubebyon-edge": "./services/edge",
}

func newStack(lookup func(string) (string, bool), out io.Writer) (*stack, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	root, err := layout.Root(dir)
	if err != nil {
		return nil, err
	}
	l, err := layout.FromEnv(func(name string) (string, bool) {
		if v, ok := lookup(name); ok || name != "KUBEBYON_STATE" {
			return v, ok
		}
		return filepath.Join(root, ".run", "bench"), true
	}, dir)
	if err != nil {
		return nil, err
	}
	return &stack{layout: l, root: root, out: out, adminPassword: rand.Text()}, nil
}

func (s *stack) bin(name string) string    { return filepath.Join(s.root, ".bin", name) }
func (s *stack) file(name string) string   { return filepath.Join(s.layout.State, name) }
func (s *stack) say(text string, a ...any) { fmt.Fprintf(s.out, text+"\n", a...) }

// up starts everything. What it started before a failure is left to down.
func (s *stack) up(ctx context.Context) error {
	if err := os.MkdirAll(s.layout.State, 0o755); err != nil {
		return err
	}
	s.say("building")
	build := func(name, source string) error {
		return s.tool(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", s.bin(name), source)
	}
	for name, source := range programs {
		if err := build(name, source); err != nil {
			return err
		}
	}
	if err := errors.Join(build("devhost", "./deploy/devhost"), build("nats-server", "github.com/nats-io/nats-server/v2")); err != nil {
		return err
	}
	s.say("starting the host cluster")
	if err := s.tool(ctx, s.bin("devhost"), "up"); err != nil {
		return err
	}
	if err := s.tool(ctx, s.bin("devhost"), "mirror", s.file("mirror")); err != nil {
		return err
	}
	var err error
	if s.hostConfig, err = clientcmd.BuildConfigFromFlags("", s.layout.Kubeconfig()); err != nil {
		return err
	}
	s.hostConfig.QPS = -1
	if s.host, err = kubernetes.NewForConfig(s.hostConfig); err != nil {
		return err
	}
	s.say("starting PostgreSQL and kubebyon-api")
	if s.database, err = pgtest.Start(); err != nil {
		return err
	}
	if err := os.WriteFile(s.file("admin-password"), []byte(s.adminPassword+"\n"), 0o600); err != nil {
		return err
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	if err := os.WriteFile(s.file("encryption-key"), []byte(base64.StdEncoding.EncodeToString(key)+"\n"), 0o600); err != nil {
		return err
	}
	return s.startTogether(ctx)
}

// unhurried are limits that one address that asks for everything, as this one does, never reaches.
var unhurried = []string{
	"KUBEBYON_API_RATE_LIMIT_PER_SECOND=1000000", "KUBEBYON_API_RATE_LIMIT_BURST=1000000",
	"KUBEBYON_TRUSTED_PROXY_CIDRS=198.18.0.0/15", // the benchmark plays a proxy of many clients
	"KUBEBYON_AUTH_RATE_LIMIT_BURST=1000000", "KUBEBYON_JOIN_RATE_LIMIT_BURST=1000000",
}

// settings of every process of the product.
func (s *stack) settings() []string {
	return append([]string{
		"KUBEBYON_DATABASE_DSN=" + s.database.DSN(),
		"KUBEBYON_KUBECONFIG_PATH=" + s.layout.Kubeconfig(),
		"KUBEBYON_CONTROL_PLANE=upstream",
		"KUBEBYON_MIRROR_DIR=" + s.file("mirror"),
		"KUBEBYON_ADMIN_EMAIL=" + adminEmail,
		"KUBEBYON_ADMIN_PASSWORD_FILE=" + s.file("admin-password"),
		"KUBEBYON_ENCRYPTION_KEY_FILE=" + s.file("encryption-key"),
		"KUBEBYON_HAPROXY_STATE_DIR=" + s.file("haproxy"),
	}, unhurried...)
}

// startTogether runs kubebyon-api.
func (s *stack) startTogether(ctx context.Context) error {
	addr, err := free(ctx, s.layout.Net.Gateway().String())
	if err != nil {
		return err
	}
	if _, err := s.start("kubebyon-api", s.bin("kubebyon-api"), append(s.settings(), "KUBEBYON_HTTP_ADDR="+addr)); err != nil {
		return err
	}
	return s.enter(ctx, "http://"+addr)
}

// startApart replaces kubebyon-api with the five processes and a NATS server, on the same database.
func (s *stack) startApart(ctx context.Context) error {
	if s.split != nil {
		return nil
	}
	if err := s.stopAll(); err != nil {
		return err
	}
	addr, err := free(ctx, s.layout.Net.Gateway().String())
	if err != nil {
		return err
	}
	bus, err := free(ctx, "127.0.0.1")
	if err != nil {
		return err
	}
	if _, err := s.start("nats-server", s.bin("nats-server"), nil, "--addr", "127.0.0.1", "--port", bus[len("127.0.0.1:"):]); err != nil {
		return err
	}
	env := append(s.settings(), "KUBEBYON_HTTP_ADDR="+addr, "KUBEBYON_NATS_URL=nats://"+bus)
	s.split = map[string]*process{}
	for name := range programs {
		if name == "kubebyon-api" {
			continue
		}
		if s.split[name], err = s.start(name, s.bin(name), env); err != nil {
			return err
		}
	}
	return s.enter(ctx, "http://"+addr)
}

// enter waits until every part is ready and logs in.
func (s *stack) enter(ctx context.Context, base string) error {
	c, err := newClient(base)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var last error
	if err := apiclient.Poll(ctx, 100*time.Millisecond, func() (bool, error) { last = c.ready(ctx); return last == nil, nil }); err != nil {
		return fmt.Errorf("%w; last: %w", err, last)
	}
	s.api = c
	return c.logIn(ctx, s.adminPassword)
}

// down ends all that up started; the state folder goes too, unless its logs are wanted.
func (s *stack) down(ctx context.Context, forget bool) error {
	all := []error{s.stopAll(), machine.Purge(ctx, s.layout.State)}
	if s.database != nil {
		s.database.Remove()
	}
	if _, err := os.Stat(s.bin("devhost")); err == nil {
		all = append(all, s.tool(ctx, s.bin("devhost"), "down"))
	}
	if err := errors.Join(all...); err != nil || !forget {
		s.say("the logs are in %s", s.layout.State)
		return err
	}
	return os.RemoveAll(s.layout.State)
}
