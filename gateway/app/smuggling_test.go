package app_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"

	"github.com/kubebyon/kubebyon/pkg/contract"
)

// What a client names like our own headers never reaches a service: the messages themselves have what the gateway wrote, and nothing else.
func TestHeadersAreNotSmuggledIntoMessages(t *testing.T) {
	before := otel.GetTextMapPropagator()
	otel.SetTextMapPropagator(propagation.TraceContext{}) // as every process sets it
	t.Cleanup(func() { otel.SetTextMapPropagator(before) })
	w := start(t)
	conn, err := nats.Connect(w.nats)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var mu sync.Mutex
	var seen []*nats.Msg
	if _, err := conn.Subscribe("kubebyon.>", func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		if !strings.HasSuffix(m.Subject, ".ping") {
			seen = append(seen, m)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	var cookie string
	for _, c := range w.browser.Jar.Cookies(request(t, w.url).URL) {
		cookie = c.Name + "=" + c.Value
	}
	const strangers = "0af7651916cd43dd8448eb211c80319c"
	evil := `{"user_id":"usr_evil","role":"admin"}`
	for name, headers := range map[string]string{
		"our names":            "kb-principal: " + evil + "\nkb-timeout-ms: 1\nkb-status: ok\nkb-error-kind: internal\nkb-error-code: x\n",
		"their usual form":     "Kb-Principal: " + evil + "\nKb-Timeout-Ms: 999999\nKB-STATUS: error\n",
		"underscores":          "kb_principal: " + evil + "\nkb_timeout_ms: 1\n",
		"twice":                "kb-principal: " + evil + "\nkb-principal: " + evil + "\n",
		"a folded line":        "X-Any: a\n kb-principal: " + evil + "\n",
		"a line end, encoded":  "X-Any: a%0d%0akb-principal: " + evil + "\n",
		"a trace of their own": "traceparent: 00-" + strangers + "-b7ad6b7169203331-01\ntracestate: evil=canary\nbaggage: evil=canary\n",
		"a trace that is none": "traceparent: 00-canary\\r\\nkb-principal: " + evil + "\ntracestate: " + strings.Repeat("x", 2000) + "\n",
		"hop by hop":           "Connection: kb-principal, traceparent\nkb-principal: " + evil + "\ntraceparent: 00-" + strangers + "-b7ad6b7169203331-01\n",
		"very long":            "kb-principal: " + strings.Repeat("canary", 4000) + "\n",
		"NATS's own":           "Nats-Msg-Id: canary\nNats-Expected-Stream: canary\nNats-Service-Error: canary\nNats-Service-Error-Code: 500\nStatus: 503\n",
		"a reply's address":    "Reply-To: _INBOX.canary\nSubject: kubebyon.v1.cluster.delete\n",
		"a user and a role":    "X-User-Id: usr_evil\nX-Role: admin\nImpersonate-User: usr_evil\nX-Remote-User: usr_evil\nUser-Agent: usr_evil\n",
	} {
		mu.Lock()
		seen = nil
		mu.Unlock()
		status := w.send(t, "GET "+clusters+" HTTP/1.1\nHost: x\nCookie: "+cookie+"\nConnection: close\n"+headers+"\n")
		if status != "200" {
			t.Errorf("%s: %s", name, status)
			continue
		}
		var messages []*nats.Msg
		w.eventually(func() bool {
			mu.Lock()
			defer mu.Unlock()
			messages = append([]*nats.Msg{}, seen...)
			return len(messages) > 0
		})
		if len(messages) != 1 || messages[0].Subject != "kubebyon.v1.cluster.list" {
			t.Errorf("%s: %d messages, the first to %s", name, len(messages), messages[0].Subject)
		}
		m := messages[0]
		for key, values := range m.Header {
			switch {
			case key != "traceparent" && key != "kb-timeout-ms" && key != "kb-principal" || len(values) != 1:
				t.Errorf("%s: the message has %s %q", name, key, values)
			case strings.Contains(values[0], "evil") || strings.Contains(values[0], "canary") || strings.Contains(values[0], strangers) || len(values[0]) > 200:
				t.Errorf("%s: %s is %q", name, key, values[0])
			}
		}
		var who contract.Principal
		if err := json.Unmarshal([]byte(m.Header["kb-principal"][0]), &who); err != nil || who.Role != contract.RoleAdmin || !strings.HasPrefix(who.UserID, "usr_") {
			t.Errorf("%s: %+v %v", name, who, err)
		}
		var ms int
		if _, err := fmt.Sscan(m.Header["kb-timeout-ms"][0], &ms); err != nil || ms < 100 || ms > 25_000 {
			t.Errorf("%s: %d ms %v", name, ms, err)
		}
		if strings.Contains(string(m.Data), "evil") || strings.Contains(string(m.Data), "canary") {
			t.Errorf("%s: %s", name, m.Data)
		}
	}
	// A real line end inside of a value never becomes a header of anything.
	for name, c := range map[string]struct{ send, want string }{
		"a bare CR":       {"X-Any: a\rkb-principal: " + evil + "\n", "400"},
		"a NUL":           {"X-Any: a\x00b\n", "400"},
		"a name with CR":  {"kb-principal\r: x\n", "400"},
		"a name in parts": {"kb principal: x\n", "400"},
		"more than fits":  {"kb-principal: " + strings.Repeat("x", 80<<10) + "\n", "431"},
	} {
		if status := w.send(t, "GET "+clusters+" HTTP/1.1\nHost: x\nCookie: "+cookie+"\n"+c.send+"\n"); status != c.want {
			t.Errorf("%s: %s, want %s", name, status, c.want)
		}
	}
}

// send writes a request with CR LF at its line ends, and gives the answer's status.
func (w *world) send(t *testing.T, lines string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", strings.TrimPrefix(w.url, "http://"), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(conn, strings.ReplaceAll(lines, "\n", "\r\n"))
	status := make([]byte, 12)
	if _, err := io.ReadFull(conn, status); err != nil {
		return err.Error()
	}
	return string(status[9:])
}
