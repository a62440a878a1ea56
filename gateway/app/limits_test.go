package app_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/gateway/internal/attempt"
)

// from makes the client's address what a trusted proxy says.
func from(address string) []string { return []string{"X-Forwarded-For", address} }

// behindProxy trusts the tests' own address as a proxy.
func behindProxy() wish { return with("KUBEBYON_TRUSTED_PROXY_CIDRS", "127.0.0.0/8") }

// limited is a world whose clock stands still once the administrator is logged in, with small limits.
func limited(t *testing.T, wishes ...wish) *world {
	t.Helper()
	w := prepare(t, append([]wish{behindProxy(), with("KUBEBYON_AUTH_RATE_LIMIT_BURST", "5"), with("KUBEBYON_JOIN_RATE_LIMIT_BURST", "5"),
		with("KUBEBYON_API_RATE_LIMIT_BURST", "20"), with("KUBEBYON_API_RATE_LIMIT_PER_SECOND", "2")}, wishes...)...)
	w.eventually(func() bool { return w.call("GET", "/readyz", "", "").status == 200 || w.backend == nil })
	w.standStill()
	w.eventually(func() bool {
		return w.call("POST", login, "", `{"email":"`+adminEmail+`","password":"`+adminPassword+`"}`).status == http.StatusOK
	})
	w.execute(t, `delete from rate_limits`)
	return w
}

// Each limit allows its burst, says truly when the next request is possible, and counts each client by itself.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name               string
		method, path, fill string
		burst              int
		every              time.Duration
	}{
		{"auth", "POST", "/api/auth/captcha", "", 5, 30 * time.Second},
		{"auth", "POST", "/api/auth/setup", "", 5, 30 * time.Second},
		{"join", "GET", "/node/join", "?token=" + joinToken, 5, 3 * time.Second},
		{"api", "GET", clusters, "", 20, time.Second / 2},
		{"api", "GET", "/api/openapi.yaml", "", 20, time.Second / 2},
		{"api", "POST", "/api/auth/logout", "", 20, time.Second / 2},
	} {
		t.Run(c.name+" "+c.path, func(t *testing.T) {
			w := limited(t)
			stranger := w.newBrowser()
			ask := func(address string) answer {
				t.Helper()
				return w.callAs(stranger, c.method, c.path, c.fill, "", append(from(address), "Accept", "application/json")...)
			}
			policy := fmt.Sprintf("%q;q=%d;w=%d", c.name, c.burst, int((time.Duration(c.burst)*c.every+time.Second-1)/time.Second))
			for left := c.burst - 1; left >= 0; left-- {
				a := ask("192.0.2.1")
				reset := int((time.Duration(c.burst-left)*c.every + time.Second - 1) / time.Second)
				if a.status == 429 || a.header.Get("RateLimit-Policy") != policy || a.header.Get("RateLimit") != fmt.Sprintf("%q;r=%d;t=%d", c.name, left, reset) {
					t.Fatalf("%d left: %d %v", left, a.status, a.header)
				}
			}
			refused := ask("192.0.2.1")
			refused.expect(t, 429, "rate_limited")
			wait, err := strconv.Atoi(refused.header.Get("Retry-After"))
			if err != nil || time.Duration(wait)*time.Second < c.every || time.Duration(wait)*time.Second >= c.every+time.Second {
				t.Errorf("Retry-After %q", refused.header.Get("Retry-After"))
			}
			if !strings.HasPrefix(refused.header.Get("RateLimit"), `"`+c.name+`";r=0;t=`) || refused.header.Get("RateLimit-Policy") != policy || refused.problem.Action == "" {
				t.Errorf("%v %s", refused.header, refused.text)
			}
			// Nobody else is any poorer.
			if a := ask("192.0.2.2"); a.status == 429 {
				t.Errorf("another client: %d", a.status)
			}
			w.clock.Add(int64(c.every) - int64(time.Millisecond))
			ask("192.0.2.1").expect(t, 429, "rate_limited")
			w.clock.Add(int64(time.Duration(wait)*time.Second - c.every + time.Millisecond))
			if a := ask("192.0.2.1"); a.status == 429 {
				t.Errorf("after the wait that was asked for: %s", a.text)
			}
		})
	}
}

// What has no limit has none, and every other route has one.
func TestUnlimitedRoutes(t *testing.T) {
	w := limited(t)
	for _, path := range []string{"/healthz", "/setup", "/node/mirror/{name}"} {
		for range 40 {
			if a := w.call("GET", path, "x", ""); a.status == 429 || a.header.Get("RateLimit") != "" {
				t.Fatalf("%s: %d %v", path, a.status, a.header)
			}
		}
	}
}

// Whoever holds an IPv6 network is one client, and an IPv4 address is one however it is written.
func TestLimitsCountNetworks(t *testing.T) {
	w := limited(t)
	captcha := func(address string) int {
		return w.callAs(w.newBrowser(), "POST", "/api/auth/captcha", "", "", from(address)...).status
	}
	for i := range 5 {
		if status := captcha(fmt.Sprintf("2001:db8:0:1::%d", i)); status != 201 {
			t.Fatal(status)
		}
	}
	for address, want := range map[string]int{"2001:db8:0:1:ffff::1": 429, "[2001:db8:0:1::99]:4711": 429, "2001:db8:0:2::1": 201} {
		if status := captcha(address); status != want {
			t.Errorf("%s: %d", address, status)
		}
	}
	for range 5 {
		captcha("198.51.100.1")
	}
	for address, want := range map[string]int{"::ffff:198.51.100.1": 429, "198.51.100.1:80": 429, "198.51.100.2": 201} {
		if status := captcha(address); status != want {
			t.Errorf("%s: %d", address, status)
		}
	}
}

// A refused log-in is not looked at, and is not in the audit log.
func TestLimitedLogInsAreNotLookedAt(t *testing.T) {
	w := limited(t)
	for range 5 {
		w.callAs(w.newBrowser(), "POST", login, "", `{"email":"x","password":"x"}`, from("192.0.2.1")...)
	}
	w.callAs(w.newBrowser(), "POST", login, "", `{"email":"`+adminEmail+`","password":"`+adminPassword+`"}`, from("192.0.2.1")...).expect(t, 429, "rate_limited")
	w.callAs(w.newBrowser(), "POST", login, "", `{"email":"`+adminEmail+`","password":"`+adminPassword+`"}`, from("192.0.2.2")...).expect(t, 200, "")
	if a := w.call("GET", auditLog, "?client=192.0.2.1", ""); strings.Count(a.text, `"session.open"`) != 5 {
		t.Errorf("%s", a.text)
	}
}

// Fifty tries at one account at once, through two gateways, from fifty addresses, each with the answer to a captcha: five are
// compared. The others hear that they are too many, whether there is the account or not.
func TestTwoGatewaysCountOneAccount(t *testing.T) {
	first := limited(t)
	second := prepare(t, behindProxy(), with("KUBEBYON_DATABASE_DSN", first.dsn), with("KUBEBYON_NATS_URL", first.nats), withoutServices, with("KUBEBYON_AUTH_RATE_LIMIT_BURST", "5"))
	second.eventually(func() bool {
		return strings.Contains(second.call("GET", "/readyz", "", "").text, `{"name":"postgresql","state":"ok","required":true}`)
	})
	second.still.Store(first.still.Load())
	for _, email := range []string{adminEmail, "nobody@example.com"} {
		first.execute(t, `delete from rate_limits`)
		first.execute(t, `delete from login_failures`)
		solutions := make([]string, 50)
		for i := range solutions {
			solutions[i] = first.solvedFrom(fmt.Sprintf("198.51.100.%d", i))
		}
		var compared, refused, odd atomic.Int32
		var wg sync.WaitGroup
		for i, solution := range solutions {
			wg.Go(func() {
				w := []*world{first, second}[i%2]
				a := w.callAs(w.newBrowser(), "POST", login, "", fmt.Sprintf(`{"email":%q,"password":"guess",%s}`, email, solution), from(fmt.Sprintf("192.0.2.%d", i))...)
				switch {
				case a.problem.Code == "wrong_credentials" || a.problem.Code == "login_busy": // they were let through to the password
					compared.Add(1)
				case a.status == 429 && a.problem.Code == "rate_limited" && a.header.Get("Retry-After") == "30" && strings.Contains(strings.Join(a.header.Values("RateLimit"), ","), `"login";r=0;t=150`):
					refused.Add(1)
				default:
					odd.Add(1)
					t.Errorf("%d %v %s", a.status, a.header, a.text)
				}
			})
		}
		wg.Wait()
		if compared.Load() != 5 || refused.Load() != 45 {
			t.Errorf("%s: %d compared, %d refused, %d other answers", email, compared.Load(), refused.Load(), odd.Load())
		}
	}
	// However many were refused at once: the next one needs a captcha again.
	first.callAs(first.newBrowser(), "POST", login, "", `{"email":"nobody@example.com","password":"guess"}`, from("203.0.113.1")...).expect(t, 401, "captcha_required")
}

// Without an answer to a captcha nobody uses up another's log-ins.
func TestGuessesDoNotLockTheOwnerOut(t *testing.T) {
	w := limited(t)
	for i := range 30 {
		w.callAs(w.newBrowser(), "POST", login, "", `{"email":"`+adminEmail+`","password":"guess"}`, from(fmt.Sprintf("192.0.2.%d", i))...)
	}
	body := fmt.Sprintf(`{"email":%q,"password":%q,%s}`, adminEmail, adminPassword, w.solvedFrom("198.51.100.1"))
	w.callAs(w.newBrowser(), "POST", login, "", body, from("198.51.100.1")...).expect(t, 200, "")
	if free := attempt.Free; free >= 5 {
		t.Fatalf("%d guesses are free: this test shows nothing", free)
	}
}

// More clients than MAX_ENTRIES take no more rows.
func TestManyClientsAtTheGateway(t *testing.T) {
	w := limited(t, with("KUBEBYON_AUTH_RATE_LIMIT_MAX_ENTRIES", "64"))
	for i := range 300 {
		w.callAs(w.browser, "POST", "/api/auth/setup", "", `{"token":"","email":"","password":""}`, from(fmt.Sprintf("10.0.%d.%d", i/250, i%250))...).expect(t, 400, "field_required")
		w.clock.Add(int64(time.Millisecond))
	}
	if n := w.count(t, `select count(*) from rate_limits`); n > 64 || n < 48 {
		t.Errorf("%d rows", n)
	}
}

func (w *world) count(t *testing.T, sql string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func (w *world) solvedFrom(address string) string {
	w.t.Helper()
	var made struct {
		ID string `json:"captcha_id"`
	}
	w.callAs(w.newBrowser(), "POST", "/api/auth/captcha", "", "", from(address)...).json(w.t, &made)
	return fmt.Sprintf(`"captcha_id":%q,"captcha_answer":"666666"`, made.ID)
}

// The join command's curl waits as long as it is told and then gets its script: it is not lost in sh.
func TestJoinCommandWaitsForTheLimit(t *testing.T) {
	w := limited(t, with("KUBEBYON_JOIN_RATE_LIMIT_BURST", "1"), with("KUBEBYON_JOIN_RATE_LIMIT_WINDOW_SECONDS", "1"))
	w.call("GET", "/node/join", "?token="+joinToken, "").expect(t, 200, "")
	done := make(chan error, 1)
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "sh", "-c", `curl -fsSL --retry 10 "$1" | sh -`, "sh", w.url+"/node/join?token="+joinToken)
	command.Stdout, command.Stderr = &out, &errs
	go func() { done <- command.Run() }()
	// The clock goes on once the command has been refused.
	w.eventually(func() bool { return strings.Contains(w.log.String(), "status=429") })
	w.clock.Add(int64(time.Second))
	if err := <-done; err != nil || out.String() != scriptCanary+"\n" {
		t.Errorf("%q %q %v", out.String(), errs.String(), err)
	}
	if n := strings.Count(w.log.String(), "status=429"); n != 1 {
		t.Errorf("it was refused %d times", n)
	}
}

// Over the limit a shell gets a script that fails, whatever it does with the status, and a program a problem.
func TestJoinOverTheLimit(t *testing.T) {
	w := limited(t, with("KUBEBYON_JOIN_RATE_LIMIT_BURST", "1"))
	w.call("GET", "/node/join", "?token="+joinToken, "").expect(t, 200, "")
	for _, headers := range [][]string{nil, {"Accept", "*/*"}} {
		a := w.call("GET", "/node/join", "?token="+joinToken, "", headers...)
		if a.status != 429 || a.header.Get("Retry-After") != "3" || a.header.Get("X-KubeBYON-Code") != "rate_limited" ||
			a.header.Get("RateLimit") != `"join";r=0;t=3` || a.header.Get("Content-Type") != "text/x-shellscript; charset=utf-8" {
			t.Errorf("%d %v", a.status, a.header)
		}
		var exit *exec.ExitError
		shell := exec.Command("sh", "-")
		shell.Stdin = strings.NewReader(a.text)
		said, err := shell.CombinedOutput()
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.HasPrefix(string(said), "KubeBYON: too many requests from this address.\nWhat to do: try again in 3 s.\nNothing was changed") {
			t.Errorf("%q %v", said, err)
		}
	}
	for _, accept := range []string{"application/json", "application/problem+json"} {
		a := w.call("GET", "/node/join", "?token="+joinToken, "", "Accept", accept)
		a.expect(t, 429, "rate_limited")
		if a.header.Get("Retry-After") != "3" || len(a.header.Values("RateLimit")) != 1 {
			t.Errorf("%v", a.header)
		}
	}
	w.backend.set(func(b *backend) {
		if len(b.scripts) != 1 {
			t.Errorf("%d scripts were made", len(b.scripts))
		}
	})
	if strings.Contains(w.log.String(), joinSecret) {
		t.Error("the log has a token")
	}
}

// A person who comes back from an OpenID provider too often reads so on a page.
func TestLimitedPeopleReadAPage(t *testing.T) {
	w := limited(t)
	const callback = "/api/auth/oidc/callback"
	for range 5 {
		w.call("GET", callback, "?state=x", "").expect(t, 404, "openid_unset")
	}
	w.call("GET", callback, "?state=x", "").expect(t, 429, "rate_limited")
	a := w.call("GET", callback, "?state=x", "", "Accept", "text/html")
	if a.status != 429 || a.header.Get("Retry-After") != "30" || !strings.Contains(a.text, "too many requests") || !strings.HasPrefix(a.header.Get("Content-Type"), "text/html") {
		t.Errorf("%d %v %s", a.status, a.header, a.text)
	}
}
