package app_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// clientOf sends a request as it stands and gives what the log calls its client.
func (w *world) clientOf(t *testing.T, headers string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", strings.TrimPrefix(w.url, "http://"), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	before := strings.Count(w.log.String(), `route="GET /setup"`)
	if _, err := fmt.Fprintf(conn, "GET /setup HTTP/1.1\r\nHost: x\r\n%s\r\n", strings.ReplaceAll(headers, "\n", "\r\n")); err != nil {
		t.Fatal(err)
	}
	status := make([]byte, 12)
	if _, err := io.ReadFull(conn, status); err != nil {
		t.Fatal(err)
	}
	if string(status) != "HTTP/1.1 200" {
		return string(status)
	}
	var lines []string
	w.eventually(func() bool {
		lines = strings.Split(w.log.String(), `route="GET /setup"`)
		return len(lines) > before+1 && strings.Contains(lines[len(lines)-1], "trace_id")
	})
	_, rest, _ := strings.Cut(lines[len(lines)-1], "client=")
	client, _, _ := strings.Cut(rest, " ")
	return client
}

// Whose word counts is decided by the peer's address alone; no trick with headers makes another peer of it.
func TestClientAddressAtTheGateway(t *testing.T) {
	for name, c := range map[string]struct {
		proxies string
		want    map[string]string
	}{
		"no proxy": {"", map[string]string{
			"":                                   "127.0.0.1",
			"X-Forwarded-For: 198.51.100.1\n":    "127.0.0.1",
			"X-Real-IP: 198.51.100.1\n":          "127.0.0.1",
			"X_Forwarded_For: 198.51.100.1\n":    "127.0.0.1",
			"Forwarded: for=198.51.100.1\n":      "127.0.0.1",
			"X-Forwarded-For: 127.0.0.2\n":       "127.0.0.1",
			"X-FORWARDED-FOR: ::1\nvia: 1.1 x\n": "127.0.0.1",
		}},
		"another proxy": {"10.0.0.0/8", map[string]string{
			"X-Forwarded-For: 198.51.100.1, 10.0.0.1\n": "127.0.0.1",
			"X-Real-IP: 10.0.0.1\n":                     "127.0.0.1",
		}},
		"this proxy": {"127.0.0.1/32,10.0.0.0/8", map[string]string{
			"":                                "127.0.0.1",
			"X-Forwarded-For: 198.51.100.1\n": "198.51.100.1",
			"x-forwarded-for: 203.0.113.9\nX-FORWARDED-FOR: 198.51.100.1, 10.0.0.1\n": "198.51.100.1",
			"X-Real-IP: 2001:db8::1\n":                                "2001:db8::1",
			"X-Real-IP: 203.0.113.9\nX-Forwarded-For: 198.51.100.1\n": "198.51.100.1",
			// Neither of the two makes the proxy's header another one, nor takes it away.
			"Connection: X-Forwarded-For, close\nX-Forwarded-For: 198.51.100.1\n":                    "198.51.100.1",
			"Connection: X-Forwarded-For\nX-Real-IP: 203.0.113.9\nX-Forwarded-For: 198.51.100.1\n":   "198.51.100.1",
			"X_Forwarded_For: 203.0.113.9\nX-Forwarded-For: 198.51.100.1\n":                          "198.51.100.1",
			"X-Forwarded_For: 203.0.113.9\n":                                                         "127.0.0.1",
			"X-Real_IP: 203.0.113.9\n":                                                               "127.0.0.1",
			"X-Forwarded-For : 203.0.113.9\n":                                                        "HTTP/1.1 400",
			"X-Forwarded-For: 203.0.113.9,\n\t198.51.100.1\n":                                        "198.51.100.1",
			"X-Forwarded-For: \n":                                                                    "127.0.0.1",
			"X-Forwarded-For: " + strings.Repeat("203.0.113.9, ", 1500) + "198.51.100.1, 10.1.1.1\n": "198.51.100.1",
			"X-Forwarded-For: 203.0.113.9, \x7f, 10.0.0.1\n":                                         "HTTP/1.1 400",
			"X-Forwarded-For: 203.0.113.9, level=ERROR msg=\"made up\", 10.0.0.7\n":                  "10.0.0.7",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := prepare(t, withoutServices, with("KUBEBYON_TRUSTED_PROXY_CIDRS", c.proxies))
			for headers, want := range c.want {
				if got := w.clientOf(t, headers); got != want {
					t.Errorf("%.100q: %s, want %s", headers, got, want)
				}
			}
			if strings.Contains(w.log.String(), "made up") {
				t.Error("the log repeats a header")
			}
		})
	}
}

// The audit log has the client's address, not the proxy's.
func TestAuditHasTheClientsAddress(t *testing.T) {
	w := start(t, behindProxy())
	w.callAs(w.newBrowser(), "POST", login, "", `{"email":"x","password":"x"}`, "X-Forwarded-For", "203.0.113.9, 2001:db8::7").expect(t, 401, "wrong_credentials")
	if a := w.call("GET", auditLog, "?client=2001:db8::7", ""); strings.Count(a.text, `"session.open"`) != 1 {
		t.Error(a.text)
	}
	if a := w.call("GET", auditLog, "?client=203.0.113.9", ""); strings.Contains(a.text, `"session.open"`) {
		t.Error(a.text)
	}
}
