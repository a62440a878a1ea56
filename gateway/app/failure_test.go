package app_test

import (
	"bytes"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/gateway/internal/httpapi"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/pkg/test/natstest"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

var kinds = map[fault.Kind]int{
	fault.Invalid: 400, fault.Unauthenticated: 401, fault.Forbidden: 403, fault.NotFound: 404, fault.Conflict: 409, fault.Precondition: 409,
	fault.TooLarge: 413, fault.Unsupported: 415, fault.RateLimited: 429, fault.Unavailable: 503, fault.Timeout: 504,
}

func newFault(kind fault.Kind) error {
	return fault.New(kind, "some_code", "some text").In("some_field").Do("do something")
}

func TestAbsentServicesAnswerAtOnce(t *testing.T) {
	w := start(t, withoutServices)
	w.eventually(func() bool {
		return strings.Contains(w.call("GET", "/readyz", "", "").text, `{"name":"nats","state":"ok","required":true}`)
	})
	for _, c := range []struct{ method, path, fill, body string }{
		{"GET", clusters, "", ""},
		{"POST", clusters, "", `{"name":"demo"}`},
		{"GET", cluster, clusterID, ""},
		{"PATCH", cluster, clusterID, `{"name":"x"}`},
		{"DELETE", cluster, clusterID, ""},
		{"GET", cluster + "/events", clusterID, ""},
		{"GET", cluster + "/kubeconfig", clusterID, ""},
		{"POST", cluster + "/retry", clusterID, ""},
		{"POST", cluster + "/join-token", clusterID, `{}`},
		{"GET", cluster + "/join-tokens", clusterID, ""},
		{"DELETE", cluster + "/join-tokens/{token_id}", clusterID + " " + tokenID, ""},
		{"GET", "/api/console/nodes", "?cluster_id=" + clusterID, ""},
	} {
		begin := time.Now()
		a := w.call(c.method, c.path, c.fill, c.body)
		if took := time.Since(begin); a.status != 503 || a.problem.Code == "" || a.header.Get("Retry-After") == "" || took > 500*time.Millisecond {
			t.Errorf("%s %s: %d after %v: %s", c.method, c.path, a.status, took, a.text)
		}
	}
	if a := w.call("GET", "/healthz", "", ""); a.status != 200 || a.text != "{\"status\":\"ok\"}\n" {
		t.Errorf("%d %s", a.status, a.text)
	}
}

func TestSlowServiceIsATimeout(t *testing.T) {
	w := start(t)
	w.backend.set(func(b *backend) { b.wait = time.Minute })
	begin := time.Now()
	a := w.call("GET", cluster, clusterID, "")
	if took := time.Since(begin); a.status != 504 || took < clusterv1.Get.Timeout/2 || took > clusterv1.Get.Timeout+2*time.Second {
		t.Errorf("%d after %v: %s", a.status, took, a.text)
	}
}

func TestReadiness(t *testing.T) {
	w := start(t)
	w.eventually(func() bool { return w.call("GET", "/readyz", "", "").status == 200 })
	bare := start(t, withoutServices)
	a := bare.call("GET", "/readyz", "", "")
	for _, part := range []string{`"status":"not_ready"`, `{"name":"postgresql","state":"ok","required":true}`, `{"name":"cluster","state":"down","required":true}`, `{"name":"edge","state":"down","required":false}`} {
		if a.status != 503 || !strings.Contains(a.text, part) {
			t.Errorf("%d %s lacks %s", a.status, a.text, part)
		}
	}
}

func TestDatabaseDownAtStartAndMidway(t *testing.T) {
	server := pgtest.Private(t)
	server.Stop(t)
	w := prepare(t, with("KUBEBYON_DATABASE_DSN", server.DSN()))
	down := func(when string) {
		t.Helper()
		if a := w.call("GET", "/healthz", "", ""); a.status != 200 {
			t.Errorf("%s: healthz %d", when, a.status)
		}
		if a := w.call("GET", "/readyz", "", ""); a.status != 503 || !strings.Contains(a.text, `"postgresql"`) {
			t.Errorf("%s: readyz %d %s", when, a.status, a.text)
		}
		w.call("POST", "/api/auth/login", "", `{"email":"a@b","password":"x"}`).expect(t, 503, "database_unavailable")
		if a := w.call("GET", "/node/join", "?token="+joinToken, ""); a.status != 200 || a.header.Get("X-KubeBYON-Code") != "database_unavailable" {
			t.Errorf("%s: join %d %v", when, a.status, a.header)
		}
	}
	down("at start")
	server.Start(t)
	w.logIn()
	checkpoint(t, server.DSN())
	server.Stop(t)
	down("midway")
	begin := time.Now()
	w.call("GET", clusters, "", "").expect(t, 503, "database_unavailable")
	w.call("GET", settings, "", "").expect(t, 503, "database_unavailable")
	if took := time.Since(begin); took > 8*time.Second {
		t.Errorf("it took %v to say so", took)
	}
	server.Start(t)
	w.eventually(func() bool { return w.call("GET", clusters, "", "").status == 200 })
	if !strings.Contains(w.log.String(), "database_unavailable") {
		t.Error("the log does not say it")
	}
}

// The test server commits asynchronously; what must survive its crash is written out first.
func checkpoint(t *testing.T, dsn string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `checkpoint`); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close(t.Context())
}

func TestNATSDownAtStart(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close() // nobody listens here
	w := prepare(t, withoutServices, with("KUBEBYON_NATS_URL", "nats://user:canary-nats@"+address))
	w.logIn()
	w.call("GET", clusters, "", "").expect(t, 503, "messaging_unavailable")
	if a := w.call("GET", "/readyz", "", ""); a.status != 503 || !strings.Contains(a.text, `{"name":"nats","state":"starting","required":true}`) {
		t.Errorf("%d %s", a.status, a.text)
	}
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	if strings.Contains(w.log.String(), "canary") {
		t.Error("the log holds the NATS password")
	}
}

// The command that people paste fails, with a reason, whatever is wrong.
func TestJoinPipeFails(t *testing.T) {
	pipe := func(url string) (string, string, error) {
		cmd := exec.Command("sh", "-c", `curl -fsSL --retry 10 "$1" | sh -`, "sh", url)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		return out.String(), errs.String(), err
	}
	w := prepare(t)
	w.eventually(func() bool { return w.call("GET", "/readyz", "", "").status == 200 })
	if out, errs, err := pipe(w.url + "/node/join?token=" + joinToken); err != nil || out != scriptCanary+"\n" {
		t.Errorf("%q %q %v", out, errs, err)
	}
	absent := prepare(t, withoutServices)
	for url, want := range map[string]string{
		w.url + "/node/join?token=aaaaaa.aaaaaaaaaaaaaaaa": "KubeBYON: this token isn't known, or has been revoked.\nWhat to do: make a new join command.\n",
		w.url + "/node/join?token=":                        "KubeBYON: the address has no token.\n",
		w.url + "/node/join?token=$(id)":                   "KubeBYON: the address's token is not of the form id.secret.\n",
		absent.url + "/node/join?token=" + joinToken:       "KubeBYON: ",
	} {
		out, errs, err := pipe(url)
		if err == nil || out != "" || !strings.HasPrefix(errs, want) || !strings.Contains(errs, "Nothing was changed on this machine.") {
			t.Errorf("%s: %q %q %v", url, out, errs, err)
		}
	}
	for _, headers := range [][]string{nil, {"Accept", "*/*"}, {"Accept", "text/html"}} {
		a := w.call("GET", "/node/join", "?token=aaaaaa.aaaaaaaaaaaaaaaa", "", headers...)
		if a.status != 200 || a.header.Get("X-KubeBYON-Code") != "token_unknown" || !strings.HasPrefix(a.header.Get("Content-Type"), "text/x-shellscript") {
			t.Errorf("%d %v", a.status, a.header)
		}
	}
	if a := w.call("HEAD", "/node/join", "?token="+joinToken, ""); a.status != 200 || a.text != "" || a.header.Get("X-KubeBYON-Code") != "" {
		t.Errorf("%d %v", a.status, a.header)
	}
	w.backend.set(func(b *backend) {
		for _, s := range b.scripts {
			if strings.Contains(s.Token, "$") {
				t.Error("a malformed token was forwarded")
			}
		}
	})
}

func TestNATSDownMidway(t *testing.T) {
	server := natstest.Start(t)
	w := start(t, with("KUBEBYON_NATS_URL", server.URL()))
	w.eventually(func() bool { return w.call("GET", clusters, "", "").status == 200 })
	server.Stop()
	begin := time.Now()
	if a := w.call("GET", clusters, "", ""); a.status != 503 || time.Since(begin) > 2*time.Second {
		t.Errorf("%d after %v: %s", a.status, time.Since(begin), a.text)
	}
	if a := w.call("GET", "/readyz", "", ""); a.status != 503 || !strings.Contains(a.text, `{"name":"nats","state":"down","required":true}`) {
		t.Errorf("%d %s", a.status, a.text)
	}
	if a := w.call("GET", "/healthz", "", ""); a.status != 200 {
		t.Errorf("healthz: %d", a.status)
	}
	if a := w.call("GET", settings, "", ""); a.status != 200 {
		t.Errorf("what needs no NATS: %d", a.status)
	}
	server.Restart(t)
	w.eventually(func() bool { return w.call("GET", clusters, "", "").status == 200 })
}

func TestPanicIsAProblem(t *testing.T) {
	// Nothing panics on purpose; without a mirror it does, as a mistake would.
	handler := httpapi.New(httpapi.Options{Log: slog.New(slog.DiscardHandler)}).Handler()
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/node/mirror/x", http.NoBody))
	if recorder.Code != 500 || !strings.Contains(recorder.Body.String(), `"code":"internal"`) || strings.Contains(recorder.Body.String(), "nil pointer") {
		t.Errorf("%d %s", recorder.Code, recorder.Body)
	}
}
