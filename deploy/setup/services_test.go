package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats-server/v2/server"

	gateway "github.com/kubebyon/kubebyon/gateway/app"
	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
	cluster "github.com/kubebyon/kubebyon/services/cluster/app"
	edge "github.com/kubebyon/kubebyon/services/edge/app"
	node "github.com/kubebyon/kubebyon/services/node/app"
	token "github.com/kubebyon/kubebyon/services/token/app"
)

// postgres starts a server with the roles and databases of init.sql, made by psql twice, that asks each role for its password.
func postgres(t *testing.T, dir string) *pgtest.Server {
	t.Helper()
	psql, err := filepath.Glob("/usr/lib/postgresql/*/bin/psql")
	if err != nil || len(psql) == 0 {
		t.Fatalf("psql is not installed: %v", err)
	}
	s := pgtest.Private(t)
	for range 2 {
		if out, err := exec.CommandContext(t.Context(), psql[len(psql)-1], "-X", "-q", "-f", filepath.Join(dir, "postgres", rolesFile), s.DSN()).CombinedOutput(); err != nil || strings.Contains(string(out), "ERROR") {
			t.Fatalf("%v: %s", err, out)
		}
	}
	admin, err := pgx.Connect(t.Context(), s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(context.Background()) }()
	var data string
	if err := admin.QueryRow(t.Context(), "SHOW data_directory").Scan(&data); err != nil {
		t.Fatal(err)
	}
	const hba = "local all kubebyon trust\nlocal all all scram-sha-256\n"
	if err := os.WriteFile(filepath.Join(data, "pg_hba.conf"), []byte(hba), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Exec(t.Context(), "SELECT pg_reload_conf()"); err != nil {
		t.Fatal(err)
	}
	return s
}

// dsn is a service's: its password comes from its file.
func dsn(s *pgtest.Server, owner, passfile string) string {
	return strings.Replace(s.DSN(), "postgresql://kubebyon@/postgres?", "postgresql://"+role(owner)+"@/"+role(owner)+"?passfile="+passfile+"&", 1)
}

// output is written by a process and read by the test.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// TestTheServicesWorkOnIt runs the five on nothing but what was made: PostgreSQL with their roles, NATS with their users over
// TLS, the gateway's key.
func TestTheServicesWorkOnIt(t *testing.T) {
	dir := t.TempDir()
	setup(t, "files", "-nats-tls", "127.0.0.1,nats", "-nats-dir", filepath.Join(dir, "nats"), dir)
	db := postgres(t, dir)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) { // a reload takes effect a little later
		_, err := pgx.Connect(t.Context(), dsn(db, "node", filepath.Join(dir, "gateway", passFile)))
		if err != nil && strings.Contains(err.Error(), "password") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("PostgreSQL asks for no password: %v", err)
		}
	}
	stranger, err := pgx.Connect(t.Context(), strings.Replace(dsn(db, "node", filepath.Join(dir, "node", passFile)), "/kubebyon_node?", "/kubebyon_gateway?", 1))
	if err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("a service opens another's database: %v, %v", stranger, err)
	}
	url := natstest.New(t, func(o *server.Options) {
		if err := o.ProcessConfigFile(filepath.Join(dir, "nats", configFile)); err != nil {
			t.Fatal(err)
		}
	})

	kubeconfig, state := kubetest.Kubeconfig(t, kubetest.Shared(t)), shortDir(t)
	addr, public := free(t), free(t)
	password := filepath.Join(dir, "admin-password")
	if err := os.WriteFile(password, []byte("canary-admin-password\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log output
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	for owner, main := range map[string]func(context.Context, []string, func(string) (string, bool), io.Writer) int{
		"gateway": gateway.Main, "cluster": cluster.Main, "token": token.Main, "node": node.Main, "edge": edge.Main,
	} {
		own := func(file string) string { return filepath.Join(dir, owner, file) }
		env := map[string]string{
			"KUBEBYON_NATS_URL": strings.Replace(url, "nats:", "tls:", 1), "KUBEBYON_NATS_NKEY_FILE": own(seedFile), "KUBEBYON_NATS_CA_FILE": own(caFile),
			"KUBEBYON_DATABASE_DSN": dsn(db, owner, own(passFile)), "KUBEBYON_KUBECONFIG_PATH": kubeconfig,
		}
		switch owner {
		case "gateway":
			env["KUBEBYON_HTTP_ADDR"], env["KUBEBYON_ENCRYPTION_KEY_FILE"], env["KUBEBYON_ADMIN_PASSWORD_FILE"] = addr, own(keyFile), password
		case "cluster":
			env["KUBEBYON_CONTROL_PLANE"] = "upstream"
		case "edge":
			env["KUBEBYON_HAPROXY_STATE_DIR"], env["KUBEBYON_HAPROXY_BIND_ADDR"] = state, public
		}
		running.Go(func() {
			lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
			if status := main(ctx, nil, lookup, &log); status != 0 {
				t.Errorf("%s ends with %d", owner, status)
			}
		})
	}
	defer func() {
		stop()
		running.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
		if strings.Contains(strings.ToLower(log.String()), "permissions violation") {
			t.Error("a service needs more of NATS than its user may")
		}
	}()

	var body []byte
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		body, err = get(t.Context(), "http://"+addr+"/readyz")
		var ready struct {
			Checks []struct{ Name, State string }
		}
		if err == nil {
			err = json.Unmarshal(body, &ready)
		}
		away := slices.ContainsFunc(ready.Checks, func(c struct{ Name, State string }) bool { return c.State != "ok" })
		if err == nil && len(ready.Checks) == 6 && !away {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not all are ready: %v: %s", err, body)
		}
	}
	for name, secret := range secretsOf(tree(t, dir)) {
		if strings.Contains(log.String(), secret) {
			t.Errorf("%s is in the log", name)
		}
	}
}

// shortDir is a folder whose sockets have short paths.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kb-edge-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// free is an address that nobody has now.
func free(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

func get(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return body, err
}
