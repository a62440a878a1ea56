package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/deploy/runbook"
	"github.com/kubebyon/kubebyon/pkg/test/acmetest"
	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

const consoleRunbook = "../../docs/runbooks/enable-console-https-on-443.md"

// host is a machine as the runbook finds it: kubebyon-api runs with the settings of its file, and systemctl restarts it.
type host struct {
	t      *testing.T
	folder string
	log    *buffer
	stop   func()
}

func (h *host) settings() map[string]string {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join(h.folder, "kubebyon-api.env"))
	if err != nil {
		h.t.Fatal(err)
	}
	env := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			env[name] = value
		}
	}
	return env
}

func (h *host) start() {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	status := make(chan int, 1)
	env := h.settings()
	go func() { status <- Main(ctx, nil, lookup(env), h.log) }()
	h.stop = func() {
		cancel()
		if got := <-status; got != 0 {
			h.t.Errorf("kubebyon-api ended with status %d", got)
		}
	}
	h.await("http://" + env["KUBEBYON_HTTP_ADDR"] + "/readyz")
}

func (h *host) await(url string) {
	h.t.Helper()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		response, err := client.Get(url)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("%s never answered: %v\n%s", url, err, h.log)
		}
	}
}

// run gives what a shell says that runs the blocks, one after the other as a person does. Each block's output stands behind its number.
func (h *host) run(blocks []runbook.Block, values map[string]string, env []string) map[int]string {
	h.t.Helper()
	bin := filepath.Join(h.t.TempDir(), "bin")
	asked := filepath.Join(h.t.TempDir(), "restart")
	if err := os.Mkdir(bin, 0o700); err != nil {
		h.t.Fatal(err)
	}
	systemctl := fmt.Sprintf("#!/bin/sh -eu\n[ \"$*\" = 'restart kubebyon-api' ]\n: > %[1]s\nwhile [ -e %[1]s ]; do sleep 0.05; done\n", asked)
	if err := os.WriteFile(filepath.Join(bin, "systemctl"), []byte(systemctl), 0o700); err != nil {
		h.t.Fatal(err)
	}
	script, err := runbook.Script(blocks, values)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), 4*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "sh", "-s")
	shell.Dir = h.t.TempDir()
	shell.Env = append(env, "PATH="+bin+":"+os.Getenv("PATH"))
	shell.Stdin = strings.NewReader(script)
	var out bytes.Buffer
	shell.Stdout, shell.Stderr = &out, &out
	done := make(chan error, 1)
	go func() { done <- shell.Run() }()
	for running := true; running; {
		select {
		case err := <-done:
			if err != nil {
				h.t.Fatalf("%v:\n%s\nthe process's log:\n%s", err, &out, h.log)
			}
			running = false
		case <-time.After(20 * time.Millisecond):
			if _, err := os.Stat(asked); err == nil {
				h.stop()
				h.start()
				if err := os.Remove(asked); err != nil {
					h.t.Fatal(err)
				}
			}
		}
	}
	return runbook.Said(out.String())
}

func free(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// newHost starts kubebyon-api as the guide to one host has it.
func newHost(t *testing.T, more ...string) *host {
	t.Helper()
	h := &host{t: t, folder: t.TempDir(), log: &buffer{}}
	put := func(name, text string) string {
		path := filepath.Join(h.folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	settings := append([]string{
		"KUBEBYON_HTTP_ADDR=" + free(t), "KUBEBYON_DATABASE_DSN=" + pgtest.New(t), "KUBEBYON_KUBECONFIG_PATH=" + kubetest.Kubeconfig(t, kubetest.Shared(t)),
		"KUBEBYON_CONTROL_PLANE=upstream", "KUBEBYON_ADMIN_EMAIL=admin@example.com", "KUBEBYON_ADMIN_PASSWORD_FILE=" + put("admin-password", "canary-admin-password"),
		"KUBEBYON_ENCRYPTION_KEY_FILE=" + put("encryption-key", base64.StdEncoding.EncodeToString(key)+"\n"), "KUBEBYON_HAPROXY_BIND_ADDR=" + free(t), "KUBEBYON_HAPROXY_STATE_DIR=" + haproxyDir(t),
	}, more...)
	put("kubebyon-api.env", strings.Join(settings, "\n")+"\n")
	h.start()
	t.Cleanup(func() { h.stop() })
	return h
}

// own are the values that a person puts into the runbook.
func (h *host) own(tls string) map[string]string {
	env := h.settings()
	return map[string]string{"domain": "console.example.com", "public": env["KUBEBYON_HAPROXY_BIND_ADDR"], "tls": tls,
		"api": "http://" + env["KUBEBYON_HTTP_ADDR"], "folder": h.folder}
}

// of are the runbook's blocks for one kind of certificate.
func of(t *testing.T, kind string) []runbook.Block {
	t.Helper()
	all, err := runbook.Blocks(consoleRunbook)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range all {
		if !slices.Contains([]string{"", "files", "acme", "edge"}, b.Kind) {
			t.Errorf("the runbook has a block for %q", b.Kind)
		}
	}
	return slices.DeleteFunc(all, func(b runbook.Block) bool { return b.Kind != "" && b.Kind != "edge" && b.Kind != kind })
}

// expect fails unless the one block that has command says all of wants.
func expect(t *testing.T, blocks []runbook.Block, said map[int]string, command string, wants ...string) {
	t.Helper()
	at := slices.IndexFunc(blocks, func(b runbook.Block) bool { return strings.Contains(b.Text, command) })
	if at < 0 {
		t.Errorf("no block has %q", command)
		return
	}
	for _, want := range wants {
		if !strings.Contains(said[at], want) {
			t.Errorf("%s\nlacks %q:\n%s", blocks[at].Text, want, said[at])
		}
	}
}

// works holds what both kinds of certificate have in common, and that everything is as before in the end.
func (h *host) works(blocks []runbook.Block, said map[int]string) {
	h.t.Helper()
	expect(h.t, blocks, said, "getent ahosts", `{"status":"ok"}`)
	expect(h.t, blocks, said, `-fsS --connect-to "$domain:443:$tls" "https://$domain/healthz"`, `{"status":"ok"}`)
	expect(h.t, blocks, said, "--retry", `{"status":"ok"}`)
	expect(h.t, blocks, said, "/api/admin/edge", `"domain":"console.example.com","state":"serving"`)
	expect(h.t, blocks, said, "%{http_version}", "DNS:console.example.com", "\n2\n")
	expect(h.t, blocks, said, "other.example.com", "421\n")
	expect(h.t, blocks, said, "/api/auth/login", `"email":"admin@example.com"`)
	expect(h.t, blocks, said, "public_base_url", `"public_base_url"`, `https://console.example.com`)
	expect(h.t, blocks, said, "/api/admin/audit", `"client":"127.0.0.1"`)
	expect(h.t, blocks, said, "sed -i.before", `{"status":"ok"}`)
	for name := range h.settings() {
		if strings.HasPrefix(name, "KUBEBYON_HTTPS") || strings.HasPrefix(name, "KUBEBYON_TLS") || strings.HasPrefix(name, "KUBEBYON_ACME") || strings.HasPrefix(name, "KUBEBYON_CONSOLE") {
			h.t.Errorf("%s is left", name)
		}
	}
	if strings.Contains(h.log.String(), "canary-admin-password") {
		h.t.Error("the password is in the log")
	}
}

// The runbook's commands, with a certificate from files: all of them, in their order, in one shell.
func TestConsoleRunbookWithFiles(t *testing.T) {
	h := newHost(t)
	folder := t.TempDir()
	chain, key := filepath.Join(folder, "fullchain.pem"), filepath.Join(folder, "privkey.pem")
	authority := selfSigned(t, chain, key, "console.example.com")
	blocks, values := of(t, "files"), h.own(free(t))
	values["chain"], values["key"] = chain, key
	said := h.run(blocks, values, []string{"CURL_CA_BUNDLE=" + authority})
	expect(t, blocks, said, "-checkhost", "does match certificate", "the key fits")
	h.works(blocks, said)
	at := slices.IndexFunc(blocks, func(b runbook.Block) bool { return strings.Contains(b.Text, "sleep 6") })
	if lines := strings.Split(strings.TrimSpace(said[at]), "\n"); len(lines) != 4 || lines[0] != lines[2] || lines[1] != lines[3] {
		t.Errorf("after the renewal: %q", said[at])
	}
}

// And with one from an ACME server.
func TestConsoleRunbookWithACME(t *testing.T) {
	tls, public := free(t), free(t)
	_, port, _ := net.SplitHostPort(public) // the challenge comes through the edge
	number, err := net.LookupPort("tcp", port)
	if err != nil {
		t.Fatal(err)
	}
	acme := acmetest.Start(t, acmetest.Options{TLSPort: number})
	folder := t.TempDir()
	ca, issued := filepath.Join(folder, "acme-ca.pem"), filepath.Join(folder, "issued-ca.pem")
	for path, text := range map[string][]byte{ca: acme.CA, issued: acme.RootsPEM} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h := newHost(t, "KUBEBYON_HAPROXY_BIND_ADDR="+public)
	blocks, values := of(t, "acme"), h.own(tls)
	// As the text says for a server that is not Let's Encrypt.
	for i, b := range blocks {
		blocks[i].Text = strings.Replace(b.Text, "KUBEBYON_ACME_EMAIL=$email\n", "KUBEBYON_ACME_EMAIL=$email\nKUBEBYON_ACME_DIRECTORY_URL="+acme.URL+"\nKUBEBYON_ACME_CA_FILE="+ca+"\n", 1)
	}
	said := h.run(blocks, values, []string{"CURL_CA_BUNDLE=" + issued})
	expect(t, blocks, said, "email=", "KUBEBYON_ENCRYPTION_KEY_FILE=")
	expect(t, blocks, said, "seq 60", "issuer=", "Pebble")
	h.works(blocks, said)
	if acme.Orders() != 1 {
		t.Errorf("%d orders", acme.Orders())
	}
}

// selfSigned writes a pair for names and gives the file of who signed it.
func selfSigned(t *testing.T, chain, key string, names ...string) string {
	t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(60 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, secret.Public(), secret)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	for path, b := range map[string]*pem.Block{chain: {Type: "CERTIFICATE", Bytes: raw}, key: {Type: "PRIVATE KEY", Bytes: encoded}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return chain
}
