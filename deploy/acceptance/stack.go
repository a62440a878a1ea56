package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
	"github.com/kubebyon/kubebyon/deploy/devhost/machine"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

const adminEmail = "admin@kubebyon.local"

// stack is everything that the run stands on: programs, host cluster, database, the product and the workers.
type stack struct {
	layout        layout.Layout
	root          string // of the source tree
	external      bool   // the host cluster is the user's own
	out           io.Writer
	baseURL       string // the API as workers reach it
	adminPassword string
	clusterID     string // the run's first cluster, once it is made
	database      *pgtest.Server
	api           *api
	workers       []*machine.Machine
}

// workers are the machines that join, in this order. The third has no systemd.
var workers = []machine.Options{
	{Name: "worker-bookworm", Suite: machine.Bookworm, Init: machine.Systemd},
	{Name: "worker-trixie", Suite: machine.Trixie, Init: machine.Systemd},
	{Name: "worker-noinit", Suite: machine.Bookworm, Init: machine.None},
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
	state := filepath.Join(root, ".run", "acceptance")
	l, err := layout.FromEnv(func(name string) (string, bool) {
		if v, ok := lookup(name); ok || name != "KUBEBYON_STATE" {
			return v, ok
		}
		return state, true
	}, dir)
	if err != nil {
		return nil, err
	}
	kubeconfig, _ := lookup("KUBECONFIG")
	return &stack{layout: l, root: root, out: out, external: kubeconfig != "", adminPassword: rand.Text()}, nil
}

func (s *stack) bin(name string) string    { return filepath.Join(s.root, ".bin", name) }
func (s *stack) mirror() string            { return filepath.Join(s.layout.State, "mirror") }
func (s *stack) say(text string, a ...any) { fmt.Fprintf(s.out, text+"\n", a...) }
func (s *stack) kubectl() string {
	return filepath.Join(s.layout.Cache, "kubernetes", layout.Kubernetes, "kubectl")
}
func (s *stack) kubeconfig() string      { return s.layout.Kubeconfig() }
func (s *stack) file(name string) string { return filepath.Join(s.layout.State, name) }
func (s *stack) controlPlaneHost() string {
	if s.external {
		return "" // the product's default: an address of the host cluster's first node
	}
	return s.layout.Net.Host().String()
}

// up starts everything. What it started before a failure is left to down.
func (s *stack) up(ctx context.Context) error {
	if err := os.MkdirAll(s.layout.State, 0o755); err != nil {
		return err
	}
	s.say("building")
	for name, source := range map[string]string{"devhost": "./deploy/devhost", "kubebyon-api": "./deploy/standalone"} {
		if err := s.tool(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", s.bin(name), source); err != nil {
			return err
		}
	}
	s.say("starting the host cluster")
	if err := s.tool(ctx, s.bin("devhost"), "up"); err != nil {
		return err
	}
	if err := s.tool(ctx, s.bin("devhost"), "mirror", s.mirror()); err != nil {
		return err
	}
	s.say("starting PostgreSQL")
	var err error
	if s.database, err = pgtest.Start(); err != nil {
		return err
	}
	for _, options := range workers {
		s.say("booting %s", options.Name)
		options.Octet, options.Cache, options.State, options.Log = s.layout.Net.Octet(), s.layout.Cache, s.layout.State, s.out
		worker, err := machine.Up(ctx, options)
		if err != nil {
			return err
		}
		s.workers = append(s.workers, worker)
	}
	return s.startAPI(ctx)
}

func (s *stack) startAPI(ctx context.Context) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(s.layout.Net.Gateway().String(), "0"))
	if err != nil {
		return err
	}
	addr := listener.Addr().String()
	if err := listener.Close(); err != nil {
		return err
	}
	password := s.file("admin-password")
	if err := os.WriteFile(password, []byte(s.adminPassword+"\n"), 0o600); err != nil {
		return err
	}
	key := s.file("encryption-key")
	if err := writeKey(key); err != nil {
		return err
	}
	s.baseURL = "http://" + addr
	s.api = &api{
		program: s.bin("kubebyon-api"), logPath: s.file("kubebyon-api.log"),
		env: []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + s.layout.State,
			"KUBEBYON_HTTP_ADDR=" + addr,
			"KUBEBYON_DATABASE_DSN=" + s.database.DSN(),
			"KUBEBYON_KUBECONFIG_PATH=" + s.kubeconfig(),
			"KUBEBYON_CONTROL_PLANE=upstream",
			"KUBEBYON_MIRROR_DIR=" + s.mirror(),
			"KUBEBYON_ADMIN_EMAIL=" + adminEmail,
			"KUBEBYON_ADMIN_PASSWORD_FILE=" + password,
			"KUBEBYON_ENCRYPTION_KEY_FILE=" + key,
			"KUBEBYON_HAPROXY_BIND_ADDR=" + net.JoinHostPort(s.layout.Net.Gateway().String(), "443"),
			"KUBEBYON_HAPROXY_STATE_DIR=" + s.file("haproxy"),
			// All of it comes from one address, and asks more often than a person does.
			"KUBEBYON_API_RATE_LIMIT_PER_SECOND=10000", "KUBEBYON_API_RATE_LIMIT_BURST=100000",
			"KUBEBYON_AUTH_RATE_LIMIT_BURST=1000", "KUBEBYON_JOIN_RATE_LIMIT_BURST=1000",
		},
	}
	return s.api.start(ctx)
}

// writeKey makes what openssl rand -base64 32 prints. The database is as new as the key.
func writeKey(path string) error {
	raw := make([]byte, 32)
	_, _ = rand.Read(raw) // never fails
	return os.WriteFile(path, []byte(base64.StdEncoding.EncodeToString(raw)+"\n"), 0o600)
}

func (s *stack) tool(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.root, io.Discard, s.out
	cmd.Env = append(os.Environ(), "KUBEBYON_STATE="+s.layout.State, "KUBEBYON_CACHE="+s.layout.Cache, "CGO_ENABLED=0")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", filepath.Base(name), strings.Join(args[:min(len(args), 2)], " "), err)
	}
	return nil
}

// down ends all that up started; the state folder goes too, unless its logs are wanted.
func (s *stack) down(ctx context.Context, forget bool) error {
	var all []error
	if s.api != nil {
		all = append(all, s.api.stop())
	}
	s.endHAProxy()
	all = append(all, machine.Purge(ctx, s.layout.State))
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
