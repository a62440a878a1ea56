package app_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubebyon/kubebyon/gateway/internal/idempotency"
	"github.com/kubebyon/kubebyon/gateway/internal/keyring"
	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

const (
	idempotencyKey = "Idempotency-Key"
	replayed       = "Idempotency-Replayed"
	demo           = `{"name":"demo"}`
)

func (w *world) created() (n int) {
	w.backend.set(func(b *backend) { n = len(b.creates) })
	return n
}

// replica is another gateway on the same database and NATS, with the same encryption key.
func (w *world) replica(t *testing.T, wishes ...wish) *world {
	t.Helper()
	other := prepare(t, append([]wish{with("KUBEBYON_DATABASE_DSN", w.dsn), with("KUBEBYON_NATS_URL", w.nats), withoutServices}, wishes...)...)
	other.eventually(func() bool { return other.call("GET", "/readyz", "", "").status == http.StatusOK })
	return other
}

// sameAnswer fails unless again is first's answer, to the byte, and says that it is.
func sameAnswer(t *testing.T, first, again answer) {
	t.Helper()
	if again.status != first.status || again.text != first.text || again.header.Get(replayed) != "true" || first.header.Get(replayed) != "" {
		t.Errorf("%d %v %s\nafter %d %v %s", again.status, again.header, again.text, first.status, first.header, first.text)
	}
	for _, name := range []string{"Content-Type", "Content-Length", "Location"} {
		if diff := cmp.Diff(first.header.Values(name), again.header.Values(name)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// Fifty equal requests at once, through two gateways, make one cluster. Whoever comes while it is made is told so.
func TestEqualRequestsCreateOnce(t *testing.T) {
	ring := sharedKey(t)
	first := start(t, ring)
	second := first.replica(t, ring)
	second.browser.Jar = first.browser.Jar
	first.backend.set(func(b *backend) { b.wait = 300 * time.Millisecond })
	var fresh, later, atWork atomic.Int32
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			switch a := []*world{first, second}[i%2].call("POST", clusters, "", demo, idempotencyKey, "k"); {
			case a.status == 201 && a.header.Get(replayed) == "":
				fresh.Add(1)
			case a.status == 201:
				later.Add(1)
			case a.status == 409 && a.problem.Code == "idempotency_in_progress" && a.header.Get("Retry-After") == "1":
				atWork.Add(1)
			default:
				t.Errorf("%d %v %s", a.status, a.header, a.text)
			}
		})
	}
	wg.Wait()
	if fresh.Load() != 1 || atWork.Load() == 0 || first.created() != 1 {
		t.Errorf("%d answers are new, %d are given again, %d came too early; %d clusters were made", fresh.Load(), later.Load(), atWork.Load(), first.created())
	}
	for _, w := range []*world{first, second} {
		if a := w.call("POST", clusters, "", demo, idempotencyKey, "k"); a.status != 201 || a.header.Get(replayed) != "true" {
			t.Errorf("%d %v %s", a.status, a.header, a.text)
		}
	}
	if first.created() != 1 {
		t.Errorf("%d clusters", first.created())
	}
}

func TestRequestsAreAnsweredAgain(t *testing.T) {
	w := start(t)
	plain := w.plain(t)
	w.call("PUT", settings, "", `{"settings":{"join_base_url":"https://join.example.com","public_base_url":"https://console.example.com","registration_mode":"invite"}}`)
	made := w.call("POST", clusters, "", demo, idempotencyKey, "k")
	made.expect(t, 201, "")
	sameAnswer(t, made, w.call("POST", clusters, "", demo, idempotencyKey, "k"))

	// What is not the same request.
	for _, c := range []struct{ path, fill, body string }{
		{clusters, "", `{"name":"other"}`}, {clusters, "", demo + " "}, {clusters, "", `not JSON`},
		{cluster + "/retry", clusterID, ""}, {apiTokens, "", `{"name":"ci","scopes":["read"],"ttl_seconds":3600}`},
	} {
		a := w.call("POST", c.path, c.fill, c.body, idempotencyKey, "k")
		a.expect(t, 409, "idempotency_key_reused")
		if a.problem.Field != idempotencyKey || a.problem.Action == "" || a.header.Get(replayed) != "" {
			t.Errorf("%s %v", a.text, a.header)
		}
	}
	w.call("POST", clusters, "?x=y", demo, idempotencyKey, "k").expect(t, 400, "query_parameter_unknown")
	// An account's keys are its own, and the answer is the credential's.
	own := w.callAs(plain, "POST", clusters, "", `{"name":"other"}`, idempotencyKey, "k")
	own.expect(t, 201, "")
	sameAnswer(t, own, w.callAs(plain, "POST", clusters, "", `{"name":"other"}`, idempotencyKey, "k"))
	value, valueID := w.makeToken(w.browser, "ci", `"write"`)
	bearer := []string{idempotencyKey, "k", "Authorization", "Bearer " + value}
	a := w.callAs(w.bare(), "POST", clusters, "", demo, bearer...)
	a.expect(t, 409, "idempotency_answer_sealed")
	if strings.Contains(a.text, clusterID) {
		t.Errorf("it is given to another credential: %s", a.text)
	}
	bearer[1] = "l"
	byToken := w.callAs(w.bare(), "POST", clusters, "", demo, bearer...)
	sameAnswer(t, byToken, w.callAs(w.bare(), "POST", clusters, "", demo, bearer...))
	w.call("DELETE", apiToken, valueID, "").expect(t, 204, "")
	w.callAs(w.bare(), "POST", clusters, "", demo, bearer...).expect(t, 401, "token_invalid")
	if n := w.created(); n != 3 {
		t.Errorf("%d clusters", n)
	}

	// Without a body, with no answer's body, and with a credential in it.
	for _, c := range []struct{ path, fill, body string }{
		{cluster + "/retry", clusterID, ""}, {cluster + "/join-token", clusterID, ""}, {cluster + "/join-token", clusterID, `{"ttl_seconds":60}`},
		{apiTokens, "", `{"name":"once","scopes":["read"],"ttl_seconds":3600}`}, {invitations, "", `{"email":"a@example.com","role":"user"}`},
		{"/api/auth/change-password", "", `{"current_password":"` + adminPassword + `","new_password":"` + adminPassword + `"}`},
	} {
		first := w.call("POST", c.path, c.fill, c.body, idempotencyKey, c.path+c.body)
		if first.status > 299 {
			t.Errorf("%s: %d %s", c.path, first.status, first.text)
		}
		sameAnswer(t, first, w.call("POST", c.path, c.fill, c.body, idempotencyKey, c.path+c.body))
	}
	w.backend.set(func(b *backend) {
		if len(b.tokens) != 2 {
			t.Errorf("%d join tokens", len(b.tokens))
		}
	})

	// It says so in the audit log, which finds it under what was made.
	events, _ := w.audited("?action=api_token.create&limit=2")
	if len(events) != 2 || !events[0].Detail.Replayed || events[1].Detail.Replayed || events[0].Status != 201 {
		t.Fatalf("%+v", events)
	}
	if diff := cmp.Diff(events[1].Objects, events[0].Objects); diff != "" || len(events[0].Objects) == 0 {
		t.Errorf("%v: %s", events[0].Objects, diff)
	}

	// A session that has ended gets nothing, and an answer is kept for a day.
	w.callAs(w.newBrowser(), "POST", clusters, "", demo, idempotencyKey, "k").expect(t, 401, "not_logged_in")
	w.clock.Add(int64(idempotency.Life))
	before := w.created()
	if a := w.call("POST", clusters, "", `{"name":"other"}`, idempotencyKey, "k"); a.status != 201 || a.header.Get(replayed) != "" || w.created() != before+1 {
		t.Errorf("%d %v %s", a.status, a.header, a.text)
	}
}

func TestWhatTakesNoKey(t *testing.T) {
	w := start(t)
	for _, bad := range []string{"", "a b", "ä", strings.Repeat("x", 256)} {
		a := w.raw(t, w.browser, "POST", clusters, demo, "Content-Type", "application/json", idempotencyKey, bad)
		a.expect(t, 400, "idempotency_key_invalid")
		// The others do not look at it.
		w.raw(t, w.browser, "GET", clusters, "", idempotencyKey, bad).expect(t, 200, "")
		w.raw(t, w.browser, "PATCH", "/api/console/clusters/"+clusterID, demo, "Content-Type", "application/json", idempotencyKey, bad).expect(t, 200, "")
	}
	w.raw(t, w.browser, "POST", clusters, demo, "Content-Type", "application/json", idempotencyKey, "k", idempotencyKey, "k").expect(t, 400, "idempotency_key_invalid")
	if w.created() != 0 {
		t.Error("a cluster was made")
	}
	// Strangers' requests are done each time.
	for range 2 {
		if a := w.callAs(w.newBrowser(), "POST", "/api/auth/captcha", "", "", idempotencyKey, "k"); a.status != 201 && a.status != 200 || a.header.Get(replayed) != "" {
			t.Errorf("%d %v", a.status, a.header)
		}
	}
	for range 2 {
		w.raw(t, w.browser, "PATCH", "/api/console/clusters/"+clusterID, demo, "Content-Type", "application/json", idempotencyKey, "k").expect(t, 200, "")
	}
	w.backend.set(func(b *backend) {
		if len(b.updates) != 6 {
			t.Errorf("%d updates", len(b.updates))
		}
	})
}

// What failed is no answer to keep, whoever's fault it was.
func TestFailuresFreeTheKey(t *testing.T) {
	w := start(t)
	for kind, status := range kinds {
		w.backend.set(func(b *backend) { b.err = newFault(kind) })
		for range 2 {
			if a := w.call("POST", clusters, "", demo, idempotencyKey, "k"); a.status != status || a.header.Get(replayed) != "" {
				t.Errorf("%s: %d %s", kind, a.status, a.text)
			}
		}
	}
	w.backend.set(func(b *backend) { b.err = fault.New(fault.Internal, "internal", "it broke") })
	w.call("POST", clusters, "", demo, idempotencyKey, "k").expect(t, 500, "internal")
	w.backend.set(func(b *backend) { b.err = nil })
	w.call("POST", clusters, "", `not JSON`, idempotencyKey, "k").expect(t, 400, "invalid_json")
	w.call("POST", clusters, "", `{"name":"`+strings.Repeat("x", 64<<10)+`"}`, idempotencyKey, "k").expect(t, 413, "body_too_large")
	if w.created() != 0 {
		t.Fatalf("%d clusters", w.created())
	}
	made := w.call("POST", clusters, "", demo, idempotencyKey, "k")
	made.expect(t, 201, "")
	sameAnswer(t, made, w.call("POST", clusters, "", demo, idempotencyKey, "k"))
	if w.created() != 1 {
		t.Errorf("%d clusters", w.created())
	}
}

// A client that hangs up is the one that asks again: what it began goes on, and it gets the answer.
func TestAClientThatHangsUpGetsItsAnswerLater(t *testing.T) {
	w := start(t)
	w.backend.set(func(b *backend) { b.wait = 700 * time.Millisecond })
	hasty := &http.Client{Jar: w.browser.Jar, Transport: w.browser.Transport, Timeout: 200 * time.Millisecond}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+clusters, strings.NewReader(demo))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set(idempotencyKey, "k")
	if response, err := hasty.Do(request); err == nil {
		_ = response.Body.Close()
		t.Fatal("it had an answer in time")
	}
	w.call("POST", clusters, "", demo, idempotencyKey, "k").expect(t, 409, "idempotency_in_progress")
	var a answer
	w.eventually(func() bool { a = w.call("POST", clusters, "", demo, idempotencyKey, "k"); return a.status == 201 })
	if a.header.Get(replayed) != "true" || w.created() != 1 {
		t.Errorf("%v, %d clusters", a.header, w.created())
	}
}

// A gateway that dies with a request at work holds its key no longer than that request could have taken anywhere; until then nobody begins
// it a second time.
func TestAGatewayIsKilledMidway(t *testing.T) {
	ring := sharedKey(t)
	w := start(t, ring)
	env := map[string]string{asProcess: "1", "KUBEBYON_HTTP_ADDR": "127.0.0.1:0", "KUBEBYON_DATABASE_DSN": w.dsn, "KUBEBYON_NATS_URL": w.nats}
	ring(env, &world{})
	log := &buffer{}
	doomed := exec.CommandContext(t.Context(), os.Args[0])
	doomed.Stderr, doomed.Stdout, doomed.Env = log, log, []string{"PATH=" + os.Getenv("PATH")}
	for name, value := range env {
		doomed.Env = append(doomed.Env, name+"="+value)
	}
	if err := doomed.Start(); err != nil {
		t.Fatal(err)
	}
	killed := make(chan error, 1)
	kill := sync.OnceFunc(func() { _ = doomed.Process.Kill(); killed <- doomed.Wait() })
	defer kill()
	w.eventually(func() bool { return strings.Contains(log.String(), "identity ready") })
	_, address, _ := strings.Cut(log.String(), "addr=")
	address, _, _ = strings.Cut(address, "\n")
	address, _, _ = strings.Cut(address, " ")

	w.backend.set(func(b *backend) { b.wait = time.Second })
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+clusters, strings.NewReader(demo))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Cookie", w.sessionOf(w.browser))
	request.Header.Set(idempotencyKey, "k")
	cut := make(chan error, 1)
	go func() {
		response, err := http.DefaultTransport.RoundTrip(request)
		if err == nil {
			_ = response.Body.Close()
			err = fmt.Errorf("it answered %d", response.StatusCode)
		} else {
			err = nil
		}
		cut <- err
	}()
	calls := func() (n int) {
		w.backend.set(func(b *backend) { n = len(b.principals) })
		return n
	}
	w.eventually(func() bool { return calls() == 1 }) // it has reached the service
	kill()
	if err := <-cut; err != nil {
		t.Fatal(err)
	}
	w.call("POST", clusters, "", demo, idempotencyKey, "k").expect(t, 409, "idempotency_in_progress")
	w.eventually(func() bool { return w.created() == 1 }) // it went on
	if most := clusterv1.Create.Timeout; most >= idempotency.Lease {
		t.Errorf("a creation may take %v", most)
	}
	w.clock.Store(int64(idempotency.Lease - 10*time.Second))
	w.call("POST", clusters, "", demo, idempotencyKey, "k").expect(t, 409, "idempotency_in_progress")
	if w.created() != 1 {
		t.Errorf("it was begun twice")
	}
	w.clock.Store(int64(idempotency.Lease))
	if a := w.call("POST", clusters, "", demo, idempotencyKey, "k"); a.status != 201 || a.header.Get(replayed) != "" || w.created() != 2 {
		t.Errorf("%d %v %s", a.status, a.header, a.text)
	}
}

// What a replay needs besides the rows is what the rows have not.
func TestKeptAnswersAreOfNoUseElsewhere(t *testing.T) {
	first := start(t, sharedKey(t))
	body := `{"name":"ci","scopes":["read"],"ttl_seconds":3600}`
	a := first.call("POST", apiTokens, "", body, idempotencyKey, "canary-key")
	var made struct{ Token string }
	a.json(t, &made)
	for _, secret := range []string{made.Token, "canary-key", first.cookie(first.browser, "kubebyon_session")} {
		if dumped := dump(t, first.dsn); secret == "" || strings.Contains(dumped, secret) || strings.Contains(dumped, fmt.Sprintf("%x", secret)) {
			t.Errorf("%q is in the database", secret)
		}
		if strings.Contains(first.log.String(), secret) {
			t.Errorf("%q is in the log", secret)
		}
	}
	sameAnswer(t, a, first.call("POST", apiTokens, "", body, idempotencyKey, "canary-key"))
	// With the credential, and without the encryption key.
	other := first.replica(t)
	other.browser.Jar = first.browser.Jar
	other.call("POST", apiTokens, "", body, idempotencyKey, "canary-key").expect(t, 409, "idempotency_answer_sealed")
	// Without one an answer is kept by its credential alone.
	none := first.replica(t, with("KUBEBYON_ENCRYPTION_KEY_FILE", ""))
	none.browser.Jar = first.browser.Jar
	b := none.call("POST", apiTokens, "", strings.Replace(body, "ci", "none", 1), idempotencyKey, "none")
	b.expect(t, 201, "")
	sameAnswer(t, b, none.call("POST", apiTokens, "", strings.Replace(body, "ci", "none", 1), idempotencyKey, "none"))
}

// The promise cannot be kept without the database.
func TestNoKeyWithoutTheDatabase(t *testing.T) {
	w := start(t)
	w.execute(t, `alter table idempotency_keys rename to away`)
	w.call("POST", clusters, "", demo, idempotencyKey, "k").expect(t, 500, "internal")
	w.call("POST", clusters, "", demo).expect(t, 201, "")
	if w.created() != 1 {
		t.Errorf("%d clusters", w.created())
	}
	w.execute(t, `alter table away rename to idempotency_keys`)
	// It breaks between the creation and its answer: the creation is not taken back, nor called a failure.
	w.execute(t, `alter table idempotency_keys add constraint no_answers check (not done)`)
	w.call("POST", clusters, "", demo, idempotencyKey, "k").expect(t, 201, "")
	w.call("POST", clusters, "", demo, idempotencyKey, "k").expect(t, 409, "idempotency_in_progress")
	if !strings.Contains(w.log.String(), "an answer is not kept") || w.created() != 2 {
		t.Errorf("%d clusters", w.created())
	}
}

// sharedKey lets gateways have one encryption key.
func sharedKey(t *testing.T) wish {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(keyring.New()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return with("KUBEBYON_ENCRYPTION_KEY_FILE", path)
}
