package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/pkg/test/kubetest"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

// TestMembersOfACluster shares a cluster and takes it back, through every process that has a say in it.
func TestMembersOfACluster(t *testing.T) {
	dsn, password := pgtest.New(t), filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("canary-admin-password\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	api := "http://" + listener.Addr().String()
	_ = listener.Close()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var log buffer
	status := make(chan int, 1)
	go func() {
		status <- Main(ctx, nil, lookup(map[string]string{
			"KUBEBYON_HTTP_ADDR": strings.TrimPrefix(api, "http://"), "KUBEBYON_DATABASE_DSN": dsn, "KUBEBYON_CONTROL_PLANE": "upstream",
			"KUBEBYON_KUBECONFIG_PATH": kubetest.Kubeconfig(t, kubetest.Shared(t)), "KUBEBYON_ADMIN_PASSWORD_FILE": password,
			"KUBEBYON_HAPROXY_STATE_DIR": haproxyDir(t),
		}), &log)
	}()
	t.Cleanup(func() {
		stop()
		if got := <-status; got != 0 {
			t.Errorf("it ends with %d", got)
		}
		if strings.Contains(strings.ToLower(log.String()), "permissions violation") {
			t.Error("a service needs more of NATS than its user may")
		}
		if t.Failed() {
			t.Log(log.String())
		}
	})

	newBrowser := func() *http.Client {
		jar, _ := cookiejar.New(nil)
		transport := &http.Transport{}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Jar: jar, Transport: transport, Timeout: 30 * time.Second}
	}
	// call gives the status and the code of a problem, and fills into where that is not nil.
	call := func(client *http.Client, method, path, body string, into any) string {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, api+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if body != "" {
			request.Header.Set("Content-Type", "application/json")
		}
		response, err := client.Do(request)
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		if response.StatusCode < 400 && into != nil {
			if err := json.NewDecoder(response.Body).Decode(into); err != nil {
				t.Fatal(err)
			}
		}
		var problem struct{ Code string }
		if response.StatusCode >= 400 {
			_ = json.NewDecoder(response.Body).Decode(&problem)
		}
		return strings.TrimSpace(fmt.Sprint(response.StatusCode, " ", problem.Code))
	}
	expect := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Fatalf("%s answers %q, want %q", what, got, want)
		}
	}
	creator, member := newBrowser(), newBrowser()
	for deadline := time.Now().Add(60 * time.Second); call(creator, "GET", "/readyz", "", nil) != "200"; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not get ready")
		}
	}
	logIn := func(client *http.Client, email string) {
		t.Helper()
		expect("log-in", call(client, "POST", "/api/auth/login", `{"email":"`+email+`","password":"canary-admin-password"}`, nil), "200")
	}
	logIn(creator, "admin@kubebyon.local")
	const danaID, dana = "usr_danadanadanadanadana", "dana@example.com"
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), `insert into users (id, email, password_hash, role) select $1, $2, password_hash, 'user' from users`, danaID, dana); err != nil {
		t.Fatal(err)
	}
	logIn(member, dana)

	var made struct{ Cluster struct{ ID, Access string } }
	// A domain of nobody: what it is for here ends before anything would go there.
	expect("create", call(creator, "POST", "/api/console/clusters", `{"name":"shared","control_plane_host":"shared.example.com"}`, &made), "201")
	at := "/api/console/clusters/" + made.Cluster.ID
	if made.Cluster.Access != "owner" {
		t.Errorf("its creator is %q", made.Cluster.Access)
	}
	expect("a stranger", call(member, "GET", at, "", nil), "404 cluster_not_found")
	expect("a stranger's nodes", call(member, "GET", "/api/console/nodes?cluster_id="+made.Cluster.ID, "", nil), "404 cluster_not_found")
	expect("a stranger who adds itself", call(member, "PUT", at+"/members", `{"email":"`+dana+`","access":"owner"}`, nil), "404 cluster_not_found")

	expect("to add a viewer", call(creator, "PUT", at+"/members", `{"email":"`+dana+`","access":"viewer"}`, nil), "200")
	var seen struct{ Cluster struct{ Access string } }
	expect("a viewer", call(member, "GET", at, "", &seen), "200")
	if seen.Cluster.Access != "viewer" {
		t.Errorf("a viewer is %q", seen.Cluster.Access)
	}
	expect("a viewer's tokens", call(member, "GET", at+"/join-tokens", "", nil), "200")
	for method, path := range map[string]string{"POST": "/join-token", "DELETE": "", "GET": "/kubeconfig"} {
		expect("a viewer's "+method+path, call(member, method, at+path, "", nil), "403 cluster_access_insufficient")
	}
	expect("a viewer who renames", call(member, "PATCH", at, `{"name":"mine"}`, nil), "403 cluster_access_insufficient")
	expect("a viewer who adds itself", call(member, "PUT", at+"/members", `{"email":"`+dana+`","access":"owner"}`, nil), "403 cluster_access_insufficient")

	expect("to make an editor", call(creator, "PUT", at+"/members", `{"email":"`+dana+`","access":"editor"}`, nil), "200")
	expect("an editor", call(member, "PATCH", at, `{"name":"ours"}`, nil), "200")
	expect("an editor's kubeconfig", call(member, "GET", at+"/kubeconfig", "", nil), "403 cluster_access_insufficient")
	expect("an editor who deletes", call(member, "DELETE", at, "", nil), "403 cluster_access_insufficient")

	expect("to remove it", call(creator, "DELETE", at+"/members/"+danaID, "", nil), "204")
	for _, path := range []string{at, at + "/events", at + "/members", at + "/join-tokens", "/api/console/nodes?cluster_id=" + made.Cluster.ID} {
		expect("who was removed, at "+path, call(member, "GET", path, "", nil), "404 cluster_not_found")
	}
	expect("the removal", call(creator, "DELETE", at, "", nil), "202")
}
