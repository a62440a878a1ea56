package app_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestBadInput(t *testing.T) {
	w := start(t)
	long := `{"name":"` + strings.Repeat("x", 64<<10) + `"}`
	for _, c := range []struct {
		method, path, fill, body string
		headers                  []string
		status                   int
		code, field              string
	}{
		// every route with a body
		{"POST", clusters, "", `{"name":"demo","naem":1}`, nil, 400, "unknown_field", "naem"},
		{"POST", clusters, "", `{"name":7}`, nil, 400, "wrong_type", "name"},
		{"POST", clusters, "", `{"name":"demo"} {}`, nil, 400, "trailing_data", ""},
		{"POST", clusters, "", `{"name":`, nil, 400, "invalid_json", ""},
		{"POST", clusters, "", `[1]`, nil, 400, "wrong_type", ""},
		{"POST", clusters, "", long, nil, 413, "body_too_large", ""},
		{"POST", clusters, "", `{"name":"demo"}`, []string{"Content-Type", "text/plain"}, 415, "json_only", "Content-Type"},
		{"POST", clusters, "", `name=demo`, []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, "json_only", "Content-Type"},
		{"POST", clusters, "", "", nil, 415, "json_only", "Content-Type"},
		{"PATCH", cluster, clusterID, `{"id":"cl_zzzzzzzzzzzzzzzzzzzz"}`, nil, 400, "field_immutable", "id"},
		{"PATCH", cluster, clusterID, `{"namespace":"kube-system"}`, nil, 400, "field_immutable", "namespace"},
		{"PATCH", cluster, clusterID, `{"name":"x","vcluster_name":"other"}`, nil, 400, "field_immutable", "vcluster_name"},
		{"PATCH", cluster, clusterID, `{"control_plane":"vcluster"}`, nil, 400, "field_immutable", "control_plane"},
		{"PATCH", cluster, clusterID, `{"owner_id":"usr_zzzzzzzzzzzzzzzzzzzz"}`, nil, 400, "field_immutable", "owner_id"},
		{"PATCH", cluster, clusterID, `{"status":null}`, nil, 400, "field_immutable", "status"},
		{"PATCH", cluster, clusterID, `{"Namespace":"x"}`, nil, 400, "unknown_field", "Namespace"},
		{"PATCH", cluster, clusterID, `{"naem":"x"}`, nil, 400, "unknown_field", "naem"},
		{"POST", cluster + "/join-token", clusterID, `{"namespace":"x"}`, nil, 400, "unknown_field", "namespace"},
		{"PATCH", cluster, clusterID, `{"name":null}`, nil, 400, "nothing_to_change", ""},
		{"PATCH", cluster, clusterID, `{"deletion_protection":null}`, nil, 400, "nothing_to_change", ""},
		{"PATCH", cluster, clusterID, `{"deletion_protection":"false"}`, nil, 400, "wrong_type", "deletion_protection"},
		{"POST", clusters, "", `{"name":"demo","deletion_protection":1}`, nil, 400, "wrong_type", "deletion_protection"},
		{"POST", cluster + "/retry", "x", "", nil, 404, "cluster_not_found", ""},
		{"PATCH", cluster, clusterID, long, nil, 413, "body_too_large", ""},
		{"POST", cluster + "/join-token", clusterID, `{"ttl_seconds":"7200"}`, nil, 400, "wrong_type", "ttl_seconds"},
		{"POST", cluster + "/join-token", clusterID, `{"ttl_seconds":1.5}`, nil, 400, "wrong_type", "ttl_seconds"},
		{"POST", cluster + "/join-token", clusterID, `{"ttl_seconds":1e30}`, nil, 400, "wrong_type", "ttl_seconds"},
		{"POST", cluster + "/join-token", clusterID, `{"join_base_url":"http://evil"}`, nil, 400, "unknown_field", "join_base_url"},
		{"POST", cluster + "/join-token", clusterID, `{"cluster_id":"cl_zzzzzzzzzzzzzzzzzzzz"}`, nil, 400, "unknown_field", "cluster_id"},
		{"POST", "/api/auth/login", "", `{"email":"` + adminEmail + `"}`, nil, 400, "field_required", "password"},
		{"POST", "/api/auth/login", "", `{"password":"x"}`, nil, 400, "field_required", "email"},
		{"POST", "/api/auth/login", "", `{"email":["x"],"password":"x"}`, nil, 400, "wrong_type", "email"},
		{"POST", "/api/auth/login", "", `{"email":"x","password":"` + strings.Repeat("x", 60000) + `"}`, nil, 401, "wrong_credentials", ""},
		{"POST", "/api/auth/login", "", `{"email":"a\u0000b","password":"x"}`, nil, 401, "wrong_credentials", ""},
		{"POST", "/api/auth/login", "", long, nil, 413, "body_too_large", ""},
		{"POST", "/api/auth/setup", "", `{}`, nil, 400, "field_required", "token"},
		{"POST", "/api/auth/setup", "", `{"token":"x","email":"nobody","password":"twelve chars"}`, nil, 400, "email_invalid", "email"},
		{"POST", "/api/auth/setup", "", `{"token":"x","email":"a@b","password":"short"}`, nil, 400, "password_too_short", "password"},
		{"PUT", settings, "", `{}`, nil, 400, "field_required", "settings"},
		{"PUT", settings, "", `{"settings":null}`, nil, 400, "field_required", "settings"},
		{"PUT", settings, "", `{"settings":{"join_base_url":5}}`, nil, 400, "wrong_type", "settings.join_base_url"},
		{"PUT", settings, "", `{"settings":{"join_url":"x"}}`, nil, 400, "unknown_field", "join_url"},
		{"PUT", settings, "", `{"join_base_url":"https://x"}`, nil, 400, "unknown_field", "join_base_url"},
		{"PUT", settings, "", `{"settings":{"join_base_url":"ftp://x"}}`, nil, 400, "url_invalid", "join_base_url"},
		{"PUT", settings, "", `{"settings":{"public_base_url":"https://u:p@x"}}`, nil, 400, "url_invalid", "public_base_url"},

		// ids go nowhere unless they have their form
		{"GET", cluster, "x", "", nil, 404, "cluster_not_found", ""},
		{"GET", cluster, "cl_AAAAAAAAAAAAAAAAAAAA", "", nil, 404, "cluster_not_found", ""},
		{"GET", cluster, "cl_aaaaaaaaaaaaaaaaaaa", "", nil, 404, "cluster_not_found", ""},
		{"GET", cluster, "cl_aaaaaaaaaaaaaaaaaaaaa", "", nil, 404, "cluster_not_found", ""},
		{"GET", cluster, "cl_aaaaaaaaaa.aaaaaaaaa", "", nil, 404, "cluster_not_found", ""},
		{"GET", cluster, "cl_%2a", "", nil, 404, "cluster_not_found", ""},
		{"GET", cluster, "%3e", "", nil, 404, "cluster_not_found", ""},
		{"GET", cluster, "cl_aaaaaaaaaaaaaaaaaaaa%0a", "", nil, 404, "cluster_not_found", ""},
		{"GET", cluster, "cl_aaaaaaaaaaaaaaaaaaa%20", "", nil, 404, "cluster_not_found", ""},
		{"GET", cluster, "cl_aaaaaaaaaaaaaaaaaaa%ff", "", nil, 404, "cluster_not_found", ""},
		{"PATCH", cluster, "x", `{"name":"y"}`, nil, 404, "cluster_not_found", ""},
		{"DELETE", cluster, "x", "", nil, 404, "cluster_not_found", ""},
		{"GET", cluster + "/events", "x", "", nil, 404, "cluster_not_found", ""},
		{"GET", cluster + "/kubeconfig", "..%2f..", "", nil, 404, "cluster_not_found", ""},
		{"POST", cluster + "/join-token", "x", `{}`, nil, 404, "cluster_not_found", ""},
		{"GET", cluster + "/join-tokens", "x", "", nil, 404, "cluster_not_found", ""},
		{"DELETE", cluster + "/join-tokens/{token_id}", "x " + tokenID, "", nil, 404, "cluster_not_found", ""},
		{"DELETE", cluster + "/join-tokens/{token_id}", clusterID + " tok_x", "", nil, 404, "token_not_found", ""},
		{"DELETE", cluster + "/join-tokens/{token_id}", clusterID + " abcdef.0123456789abcdef", "", nil, 404, "token_not_found", ""},
		{"GET", "/api/console/nodes", "", "", nil, 400, "field_required", "cluster_id"},
		{"GET", "/api/console/nodes", "?cluster_id=", "", nil, 400, "field_required", "cluster_id"},
		{"GET", "/api/console/nodes", "?cluster_id=x.*", "", nil, 404, "cluster_not_found", ""},
		{"GET", "/api/console/nodes", "?cluster_id=%zz", "", nil, 400, "query_invalid", ""},
		{"GET", "/node/join", "", "", []string{"Accept", "application/json"}, 400, "join_token_missing", "token"},
		{"GET", "/node/join", "?token=x", "", []string{"Accept", "application/json"}, 400, "join_token_malformed", "token"},
		{"GET", "/node/join", "?token=abcdef.0123456789abcde%27", "", []string{"Accept", "application/problem+json"}, 400, "join_token_malformed", "token"},
		{"GET", "/node/join", "?token=aaaaaa.aaaaaaaaaaaaaaaa", "", []string{"Accept", "application/json"}, 404, "token_unknown", ""},

		// no such route or method
		{"GET", "/", "", "", nil, 404, "route_not_found", ""},
		{"GET", "/api/console/cluster", "", "", nil, 404, "route_not_found", ""},
		{"GET", clusters + "/", "", "", nil, 404, "route_not_found", ""},
		{"GET", "/node/mirror/", "", "", nil, 404, "mirror_file_not_found", ""},
		{"PUT", clusters, "", `{}`, nil, 405, "method_not_allowed", ""},
		{"DELETE", "/healthz", "", "", nil, 405, "method_not_allowed", ""},
		{"POST", "/node/join", "", `{}`, nil, 405, "method_not_allowed", ""},
		{"OPTIONS", clusters, "", "", nil, 405, "method_not_allowed", ""},
		{"BREW", "/api/auth/login", "", "", nil, 405, "method_not_allowed", ""},

		// other sites
		{"POST", clusters, "", `{"name":"demo"}`, []string{"Sec-Fetch-Site", "cross-site"}, 403, "cross_origin", ""},
		{"POST", clusters, "", `{"name":"demo"}`, []string{"Sec-Fetch-Site", "same-site"}, 403, "cross_origin", ""},
		{"POST", clusters, "", `{"name":"demo"}`, []string{"Origin", "https://evil.example"}, 403, "cross_origin", ""},
		{"POST", clusters, "", `{"name":"demo"}`, []string{"Origin", "null"}, 403, "cross_origin", ""},
		{"GET", clusters, "", "", []string{"Sec-Fetch-Site", "cross-site"}, 403, "cross_site", ""},
		{"POST", "/api/auth/login", "", `{"email":"a","password":"b"}`, []string{"Sec-Fetch-Site", "cross-site"}, 403, "cross_origin", ""},
	} {
		a := w.call(c.method, c.path, c.fill, c.body, c.headers...)
		if a.status != c.status || a.problem.Code != c.code || a.problem.Field != c.field {
			t.Errorf("%s %s %s %.60q %v: %d %q in %q, want %d %q in %q: %.200q", c.method, c.path, c.fill, c.body, c.headers,
				a.status, a.problem.Code, a.problem.Field, c.status, c.code, c.field, a.text)
		}
		if c.status == 405 && a.header.Get("Allow") == "" {
			t.Errorf("%s %s: no Allow", c.method, c.path)
		}
	}
	w.backend.set(func(b *backend) {
		if len(b.creates)+len(b.updates)+len(b.tokens)+len(b.pages) != 0 {
			t.Errorf("something wrong was forwarded: %+v", b)
		}
	})
}

// What the services refuse reaches the client as it is.
func TestServicesFaultsPass(t *testing.T) {
	w := start(t)
	for kind, status := range kinds {
		w.backend.set(func(b *backend) { b.err = newFault(kind) })
		a := w.call("GET", cluster, clusterID, "")
		a.expect(t, status, "some_code")
		if a.problem.Detail != "some text" || a.problem.Field != "some_field" || a.problem.Action != "do something" || len(a.problem.TraceID) != 32 {
			t.Errorf("%s: %s", kind, a.text)
		}
	}
	w.backend.set(func(b *backend) { b.err = fmt.Errorf("canary-internal /etc/passwd") })
	a := w.call("GET", cluster, clusterID, "")
	a.expect(t, 500, "internal")
	if strings.Contains(a.text, "canary") {
		t.Errorf("internal text leaves: %s", a.text)
	}
	if !strings.Contains(w.log.String(), a.problem.TraceID) {
		t.Error("the trace id of an answer is not in the log")
	}
}

func TestRawHTTP(t *testing.T) {
	w := start(t)
	for name, c := range map[string]struct{ send, want string }{
		"huge header":     {"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 80<<10) + "\r\n\r\n", "431"},
		"no host":         {"GET /healthz HTTP/1.1\r\n\r\n", "400"},
		"two lengths":     {"POST /api/auth/login HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", "400"},
		"bad chunk":       {"POST /api/auth/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "400"},
		"cut body":        {"POST /api/auth/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", "400"},
		"chunked big one": {"POST /api/auth/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n20000\r\n" + strings.Repeat(" ", 0x20000) + "\r\n0\r\n\r\n", "413"},
	} {
		conn, err := net.DialTimeout("tcp", strings.TrimPrefix(w.url, "http://"), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(conn, c.send)
		if strings.HasPrefix(name, "cut") {
			_ = conn.(*net.TCPConn).CloseWrite()
		}
		answer, _ := io.ReadAll(io.LimitReader(conn, 12))
		_ = conn.Close()
		if len(answer) < 12 || string(answer[9:12]) != c.want {
			t.Errorf("%s: %q, want %s", name, answer, c.want)
		}
	}
	if a := w.call("GET", "/healthz", "", ""); a.status != http.StatusOK {
		t.Error("it does not answer any more")
	}
}
