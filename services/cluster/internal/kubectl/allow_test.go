package kubectl

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func TestAllowed(t *testing.T) {
	for _, at := range []string{
		"/version", "/version?timeout=32s", "/api", "/api?timeout=32s", "/apis", "/api/v1", "/apis/apps", "/apis/apps/v1",
		"/openapi/v2?timeout=32s", "/openapi/v3", "/openapi/v3/api/v1?hash=ABC", "/openapi/v3/apis/apps/v1?hash=ABC",
		"/api/v1/pods?limit=500", "/api/v1/namespaces", "/api/v1/namespaces/kube-system", "/api/v1/namespaces/x/status",
		"/api/v1/namespaces/x/pods?labelSelector=app+in+%28a%2Cb%29&limit=500", "/api/v1/namespaces/x/pods/web-1", "/api/v1/namespaces/secrets",
		"/api/v1/namespaces/x/pods/web-1/log?container=web&tailLines=5", "/api/v1/namespaces/x/pods/web-1/log?follow=false",
		"/api/v1/namespaces/x/pods?watch=false", "/api/v1/nodes/n1", "/api/v1/namespaces/x/events?fieldSelector=a%3Db",
		"/apis/apps/v1/namespaces/x/deployments/web/scale", "/apis/apps/v1/namespaces/x/deployments/web/status",
		"/apis/example.com/v1/widgets", "/apis/example.com/v1/namespaces/x/widgets/one", "/apis/metrics.k8s.io/v1beta1/nodes",
		"/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node", "/apis/rbac.authorization.k8s.io/v1/clusterroles/a%20b",
	} {
		if q, reason := allow(http.MethodGet, parsed(t, at)); reason != "" || q.waits {
			t.Errorf("%s: %q, %+v", at, reason, q)
		}
	}
	for _, at := range []string{
		"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
		"/apis/authentication.k8s.io/v1/selfsubjectreviews",
	} {
		if _, reason := allow(http.MethodPost, parsed(t, at)); reason != "" {
			t.Errorf("%s: %q", at, reason)
		}
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct{ method, at, says string }{
		{"GET", "/api/v1/secrets", "Secrets"},
		{"GET", "/api/v1/namespaces/x/secrets", "Secrets"},
		{"GET", "/api/v1/namespaces/x/secrets/web", "Secrets"},
		{"GET", "/apis/example.com/v1/secrets", "Secrets"},
		{"GET", "/apis/example.com/v1/namespaces/x/secrets/a", "Secrets"},
		{"GET", "/api/v1/watch/secrets", `"watch"`},
		{"GET", "/api/v1/watch/namespaces/x/pods", `"watch"`},
		{"GET", "/apis/apps/v1/watch/deployments", `"watch"`},
		{"GET", "/api/v1/proxy/nodes/n1", `"proxy"`},
		{"GET", "/api/v1/nodes/n1/proxy", `"nodes/proxy"`},
		{"GET", "/api/v1/nodes/n1/proxy/logs/", "none of the API's"},
		{"GET", "/api/v1/nodes/n1/proxy/logs", "through the API"},
		{"GET", "/api/v1/namespaces/x/services/https:web:443/proxy", `"services/proxy"`},
		{"GET", "/api/v1/namespaces/x/services/web/proxy/secrets", "through the API"},
		{"GET", "/api/v1/namespaces/x/pods/web/exec?command=id", `"pods/exec"`},
		{"GET", "/api/v1/namespaces/x/pods/web/attach", `"pods/attach"`},
		{"GET", "/api/v1/namespaces/x/pods/web/portforward", `"pods/portforward"`},
		{"GET", "/api/v1/namespaces/x/serviceaccounts/default/token", `"serviceaccounts/token"`},
		{"GET", "/api/v1/namespaces/x/finalize", `"finalize"`},
		{"GET", "/apis/example.com/v1/namespaces/x/widgets/one/log", `"widgets/log"`},
		{"GET", "/api/v1/namespaces/x/pods/web/log?follow=true", "not followed"},
		{"GET", "/api/v1/namespaces/x/pods/web/log?follow", "not followed"},
		{"GET", "/api/v1/namespaces/x/pods/web/log?follow=false&follow=true", "more than once"},
		{"GET", "/api/v1/namespaces/x/pods/web/log?insecureSkipTLSVerifyBackend=true", `"insecureSkipTLSVerifyBackend"`},
		{"GET", "/api/v1/pods?limit=1;watch=true", "cannot be read"},
		{"GET", "/api/v1/pods?tailLines=1", `"tailLines"`},
		{"GET", "/api/v2/pods", "none of the API's"},
		{"GET", "/apis/apps/v1/../../../api/v1/secrets", "none of the API's"},
		{"GET", "/api/v1/namespaces/x%2Fsecrets/a", "Secrets"},
		{"GET", "/api/v1/namespaces//secrets", "none of the API's"},
		{"GET", "/api/v1/pods/a%00b", "none of the API's"},
		{"GET", "/api/v1/pods/a%25b", "none of the API's"},
		{"GET", "/api/v1/pods/%e2%80%8b", "none of the API's"},
		{"GET", "//api/v1/pods", "none of the API's"},
		{"GET", "/", "none of the API's"},
		{"GET", "/metrics", "none of the API's"},
		{"GET", "/logs/", "none of the API's"},
		{"GET", "/debug/pprof", "none of the API's"},
		{"GET", "/healthz", "none of the API's"},
		{"GET", "/openapi", "none of the API's"},
		{"GET", "/version/x", "none of the API's"},
		{"GET", "/api/v1/pods/" + strings.Repeat("a", maxPath), "too long"},
		{"POST", "/api/v1/namespaces/x/pods", "nothing is changed"},
		{"POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", "nothing is changed"},
		{"POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews?dryRun=All", "nothing is changed"},
		{"POST", "/api/v1/namespaces/x/serviceaccounts/default/token", "nothing is changed"},
		{"PUT", "/api/v1/namespaces/x/pods/a", "nothing is changed"},
		{"PATCH", "/api/v1/namespaces/x/pods/a", "nothing is changed"},
		{"DELETE", "/api/v1/namespaces/x/pods/a", "nothing is changed"},
		{"HEAD", "/api/v1/pods", "nothing is changed"},
		{"CONNECT", "/api/v1/pods", "nothing is changed"},
		{"get", "/api/v1/pods", "nothing is changed"},
	} {
		if _, reason := allow(c.method, parsed(t, c.at)); !strings.Contains(reason, c.says) || reason == "" {
			t.Errorf("%s %s: %q, want %q", c.method, c.at, reason, c.says)
		}
	}
}

// What would keep an answer open is never asked, and a log is bounded.
func TestWhatIsAsked(t *testing.T) {
	for at, want := range map[string]struct {
		query string
		waits bool
	}{
		"/api/v1/pods?watch=true&limit=5":                          {"limit=5", true},
		"/api/v1/pods?watch":                                       {"", true},
		"/api/v1/pods?watch=no":                                    {"", true},
		"/api/v1/pods?watch=False":                                 {"", false},
		"/api/v1/namespaces/x/pods/a/log?follow=0":                 {"limitBytes=4194304", false},
		"/api/v1/namespaces/x/pods/a/log?limitBytes=10":            {"limitBytes=10", false},
		"/api/v1/namespaces/x/pods/a/log?limitBytes=-1":            {"limitBytes=4194304", false},
		"/api/v1/namespaces/x/pods/a/log?limitBytes=5000000000000": {"limitBytes=4194304", false},
	} {
		q, reason := allow(http.MethodGet, parsed(t, at))
		if reason != "" || q.query.Encode() != want.query || q.waits != want.waits {
			t.Errorf("%s: %q, %+v", at, reason, q)
		}
	}
}

// FuzzAllow holds that what is asked of the API is a read, of what may be read, and that the API reads out of it what allow did.
func FuzzAllow(f *testing.F) {
	for _, at := range []string{
		"/api/v1/pods?watch=1", "/api/v1/namespaces/x/secrets", "/api/v1/namespaces/x%2fsecrets", "/api/v1/nodes/n/proxy/x", "/apis/a/v1/namespaces/b/c/d/status",
		"/api/v1/namespaces/x/pods/a/log?follow=true", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "/%2e%2e/api/v1/secrets", "/api/v1/pods/a;b",
	} {
		f.Add("GET", at)
		f.Add("POST", at)
	}
	f.Fuzz(func(t *testing.T, method, at string) {
		u, err := url.ParseRequestURI(at)
		if err != nil {
			return
		}
		q, reason := allow(method, u)
		if reason != "" {
			return
		}
		req, err := request(t.Context(), &url.URL{Scheme: "https", Host: "tenant.example.com"}, q, http.Header{}, nil)
		if err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		sent, err := url.ParseRequestURI(req.URL.RequestURI()) // as the API reads it
		if err != nil || sent.Path != u.Path || req.URL.Host != "tenant.example.com" {
			t.Fatalf("%s became %s, %v", at, req.URL, err)
		}
		if req.Method == http.MethodPost {
			if !strings.Contains(sent.Path, "/selfsubject") {
				t.Fatalf("it posts %s", sent.Path)
			}
			return
		}
		if req.Method != http.MethodGet || sent.Query().Has("watch") || sent.Query().Has("follow") {
			t.Fatalf("%s %s", req.Method, sent)
		}
		parts := strings.Split(strings.Trim(sent.Path, "/"), "/")
		for i, part := range parts {
			if part == ".." || part == "" && sent.Path != "/" {
				t.Fatalf("%q leads elsewhere", sent.Path)
			}
			switch part {
			case "secrets", "proxy", "exec", "attach", "portforward", "token", "watch":
				// Only as somebody's name: of an object, a namespace, a group or a version.
				if named := i == len(parts)-1 && i > 0 && len(parts) > 3 || i > 0 && parts[i-1] == "namespaces" || parts[0] != "api" && i <= 2; !named {
					t.Fatalf("%q reads %s", sent.Path, part)
				}
			}
		}
	})
}

func parsed(t *testing.T, at string) *url.URL {
	t.Helper()
	u, err := url.ParseRequestURI(at)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
