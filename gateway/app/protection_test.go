package app_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pquerna/otp/totp"

	"github.com/kubebyon/kubebyon/gateway/internal/attempt"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

const login = "/api/auth/login"

// tryLogIn logs in as a new browser; more are further fields.
func (w *world) tryLogIn(email, password string, more ...string) answer {
	w.t.Helper()
	fields := append([]string{fmt.Sprintf(`"email":%q,"password":%q`, email, password)}, more...)
	return w.callAs(w.newBrowser(), "POST", login, "", "{"+strings.Join(fields, ",")+"}")
}

// factor enables the administrator's second factor, and gives its codes at a time and its recovery codes.
func (w *world) factor() (code func() string, recovery []string) {
	w.t.Helper()
	var begun struct{ Secret, URI string }
	w.call("POST", secondFactor, "", `{"password":"`+adminPassword+`"}`).json(w.t, &begun)
	if u, err := url.Parse(begun.URI); err != nil || u.Scheme != "otpauth" || u.Query().Get("secret") != begun.Secret || u.Query().Get("issuer") != "KubeBYON" {
		w.t.Fatalf("%q %v", begun.URI, err)
	}
	code = func() string {
		made, err := totp.GenerateCode(begun.Secret, w.now())
		if err != nil {
			w.t.Fatal(err)
		}
		return made
	}
	var shown struct {
		RecoveryCodes []string `json:"recovery_codes"`
	}
	a := w.call("POST", secondFactor+"/confirm", "", `{"code":"`+code()+`"}`)
	a.json(w.t, &shown)
	if len(shown.RecoveryCodes) != 10 {
		w.t.Fatalf("%d %s", a.status, a.text)
	}
	return code, shown.RecoveryCodes
}

func (w *world) hasFactor() bool {
	w.t.Helper()
	var body struct {
		SecondFactor *bool `json:"second_factor"`
	}
	w.call("GET", "/api/auth/session", "", "").json(w.t, &body)
	if body.SecondFactor == nil {
		w.t.Fatal("the session says nothing about it")
	}
	return *body.SecondFactor
}

// Guesses at an account that exists and at one that does not are answered alike, all the way to the captcha and past it.
func TestGuessesNeedACaptcha(t *testing.T) {
	w := start(t)
	for _, email := range []string{adminEmail, "nobody@example.com", "no address at all"} {
		w.execute(t, `delete from login_failures`)
		for range attempt.Free {
			w.tryLogIn(email, "guess").expect(t, 401, "wrong_credentials")
		}
		w.tryLogIn(email, "guess").expect(t, 401, "captcha_required")
		w.tryLogIn(email, "guess", `"captcha_id":"cap_aaaaaaaaaaaaaaaaaaaa","captcha_answer":"666666"`).expect(t, 401, "captcha_wrong")
		w.tryLogIn(email, "guess", strings.Replace(w.solved(), "666666", "666667", 1)).expect(t, 401, "captcha_wrong")
		used := w.solved()
		w.tryLogIn(email, "guess", used).expect(t, 401, "wrong_credentials")
		w.tryLogIn(email, "guess", used).expect(t, 401, "captcha_wrong")
	}
	// The right password needs it too: whether a captcha is asked for tells nothing. The client's count outlives the success.
	w.execute(t, `delete from login_failures`)
	for range attempt.Free {
		w.tryLogIn(adminEmail, "guess")
	}
	w.tryLogIn(adminEmail, adminPassword).expect(t, 401, "captcha_required")
	w.tryLogIn(adminEmail, adminPassword, w.solved()).expect(t, 200, "")
	w.tryLogIn(adminEmail, adminPassword).expect(t, 401, "captcha_required")
	w.clock.Add(int64(attempt.Window))
	w.tryLogIn(adminEmail, adminPassword).expect(t, 200, "")
}

// Sixty guesses at once, and three are compared.
func TestGuessesAtOnceNeedACaptcha(t *testing.T) {
	w := start(t)
	var compared atomic.Int32
	var wg sync.WaitGroup
	for range 60 {
		wg.Go(func() {
			if w.tryLogIn(adminEmail, "guess").problem.Code != "captcha_required" {
				compared.Add(1)
			}
		})
	}
	wg.Wait()
	if compared.Load() != attempt.Free {
		t.Errorf("%d guesses were compared", compared.Load())
	}
}

func TestSecondFactor(t *testing.T) {
	w := start(t)
	other := w.newBrowser()
	w.callAs(other, "POST", login, "", `{"email":"`+adminEmail+`","password":"`+adminPassword+`"}`).expect(t, 200, "")
	w.call("POST", secondFactor+"/confirm", "", `{"code":"123456"}`).expect(t, 409, "second_factor_not_begun")
	w.call("POST", secondFactor, "", `{"password":"wrong"}`).expect(t, 401, "wrong_credentials")
	w.call("DELETE", secondFactor, "", `{"password":"`+adminPassword+`","code":"123456"}`).expect(t, 409, "second_factor_unset")
	if w.hasFactor() {
		t.Error("there is none yet")
	}
	code, recovery := w.factor()
	if !w.hasFactor() {
		t.Error("it is not shown")
	}
	w.callAs(other, "GET", "/api/auth/session", "", "").expect(t, 200, "")
	w.call("POST", secondFactor, "", `{"password":"`+adminPassword+`"}`).expect(t, 409, "second_factor_exists")

	// Only who knows the password hears of the second factor.
	w.tryLogIn(adminEmail, "wrong", `"second_factor":"`+recovery[0]+`"`).expect(t, 401, "wrong_credentials")
	w.tryLogIn(adminEmail, adminPassword).expect(t, 401, "second_factor_required")
	w.tryLogIn(adminEmail, adminPassword, `"second_factor":"`+code()+`"`).expect(t, 401, "second_factor_wrong") // spent by confirming
	w.clock.Add(int64(time.Minute))
	once := code()
	w.execute(t, `delete from login_failures`)
	w.tryLogIn(adminEmail, adminPassword, `"second_factor":"`+once[:3]+" "+once[3:]+`"`).expect(t, 200, "")
	w.execute(t, `delete from login_failures`)
	w.tryLogIn(adminEmail, adminPassword, `"second_factor":"`+once+`"`).expect(t, 401, "second_factor_wrong")
	w.tryLogIn(adminEmail, adminPassword, `"second_factor":"`+strings.ToUpper(recovery[0])+`"`).expect(t, 200, "")
	w.tryLogIn(adminEmail, adminPassword, `"second_factor":"`+recovery[0]+`"`).expect(t, 401, "second_factor_wrong")

	// Wrong codes count as failed log-ins, and then by themselves.
	w.execute(t, `delete from login_failures`)
	for range attempt.Free {
		w.tryLogIn(adminEmail, adminPassword, `"second_factor":"nonsense"`).expect(t, 401, "second_factor_wrong")
	}
	w.tryLogIn(adminEmail, adminPassword, `"second_factor":"nonsense"`).expect(t, 401, "captcha_required")
	last := answer{}
	for range 10 {
		last = w.tryLogIn(adminEmail, adminPassword, `"second_factor":"nonsense"`, w.solved())
	}
	last.expect(t, 429, "second_factor_tries")
	w.clock.Add(int64(attempt.Window))

	// A stolen session alone changes nothing.
	w.call("DELETE", secondFactor, "", `{"password":"wrong","code":"`+code()+`"}`).expect(t, 401, "wrong_credentials")
	w.call("DELETE", secondFactor, "", `{"password":"`+adminPassword+`","code":"nonsense"}`).expect(t, 401, "second_factor_wrong")
	w.call("POST", secondFactor+"/recovery-codes", "", `{"password":"`+adminPassword+`","code":"`+code()+`"}`).expect(t, 200, "")
	w.execute(t, `delete from login_failures`)
	w.tryLogIn(adminEmail, adminPassword, `"second_factor":"`+recovery[1]+`"`).expect(t, 401, "second_factor_wrong")
	w.clock.Add(int64(time.Minute))
	w.call("DELETE", secondFactor, "", `{"password":"`+adminPassword+`","code":"`+code()+`"}`).expect(t, 204, "")
	w.tryLogIn(adminEmail, adminPassword).expect(t, 200, "")

	// Nothing of it is in the log.
	for _, secret := range recovery {
		if strings.Contains(w.log.String(), secret) {
			t.Errorf("the log has %q", secret)
		}
	}
}

func TestOneCodeLogsInOnce(t *testing.T) {
	w := start(t)
	code, _ := w.factor()
	w.clock.Add(int64(time.Minute))
	once := code()
	solutions := make([]string, 50)
	for i := range solutions {
		solutions[i] = w.solved()
	}
	var in, odd atomic.Int32
	var wg sync.WaitGroup
	for _, solution := range solutions {
		wg.Go(func() {
			switch a := w.tryLogIn(adminEmail, adminPassword, `"second_factor":"`+once+`"`, solution); {
			case a.status == 200:
				in.Add(1)
			case a.problem.Code != "second_factor_wrong" && a.problem.Code != "second_factor_tries" && a.problem.Code != "login_busy":
				odd.Add(1)
			}
		})
	}
	wg.Wait()
	if in.Load() != 1 || odd.Load() != 0 {
		t.Errorf("%d log-ins, %d other answers", in.Load(), odd.Load())
	}
}

func TestAdministratorTakesSecondFactor(t *testing.T) {
	w := start(t)
	plain := w.addPlain(t, "usr_plainplainplainplain", "plain@example.com")
	admin := w.browser
	w.browser = plain
	body := `{"password":"` + adminPassword + `"}`
	var begun struct{ Secret string }
	w.call("POST", secondFactor, "", body).json(t, &begun)
	code, err := totp.GenerateCode(begun.Secret, w.now())
	if err != nil {
		t.Fatal(err)
	}
	w.call("POST", secondFactor+"/confirm", "", `{"code":"`+code+`"}`).expect(t, 200, "")
	w.callAs(plain, "DELETE", takeSecondFactor, "usr_plainplainplainplain", "").expect(t, 403, "admin_only")
	w.callAs(admin, "DELETE", takeSecondFactor, "usr_zzzzzzzzzzzzzzzzzzzz", "").expect(t, 404, "user_not_found")
	w.callAs(admin, "DELETE", takeSecondFactor, "nonsense", "").expect(t, 404, "user_not_found")
	w.tryLogIn("plain@example.com", adminPassword).expect(t, 401, "second_factor_required")
	w.callAs(admin, "DELETE", takeSecondFactor, "usr_plainplainplainplain", "").expect(t, 204, "")
	w.callAs(plain, "GET", "/api/auth/session", "", "").expect(t, 401, "not_logged_in")
	w.callAs(admin, "GET", "/api/auth/session", "", "").expect(t, 200, "")
	w.tryLogIn("plain@example.com", adminPassword).expect(t, 200, "")
}

func TestSecondFactorNeedsAnEncryptionKey(t *testing.T) {
	w := start(t, with("KUBEBYON_ENCRYPTION_KEY_FILE", ""))
	w.call("POST", secondFactor, "", `{"password":"`+adminPassword+`"}`).expect(t, 409, "encryption_key_unset")
}

// A session that an attacker has planted is not the one that its victim gets, and one that was stolen ends with the log-out.
func TestSessionsAreNeitherPlantedNorOutlived(t *testing.T) {
	w := start(t)
	address, err := url.Parse(w.url)
	if err != nil {
		t.Fatal(err)
	}
	cookie := func() string {
		for _, c := range w.browser.Jar.Cookies(address) {
			if c.Name == "kubebyon_session" {
				return c.Value
			}
		}
		return ""
	}
	with := func(value string) *http.Client {
		thief := w.newBrowser()
		thief.Jar, _ = cookiejar.New(nil)
		thief.Jar.SetCookies(address, []*http.Cookie{{Name: "kubebyon_session", Value: value}})
		return thief
	}
	planted := cookie()
	w.logIn()
	stolen := cookie()
	if stolen == planted || len(stolen) != 43 {
		t.Fatalf("%q after %q", stolen, planted)
	}
	w.callAs(with(planted), "GET", "/api/auth/session", "", "").expect(t, 401, "not_logged_in")
	w.browser = with(strings.Repeat("A", 43))
	w.logIn()
	if cookie() == strings.Repeat("A", 43) {
		t.Error("a session's id was chosen by its client")
	}
	stolen = cookie()
	w.callAs(with(stolen), "GET", "/api/auth/session", "", "").expect(t, 200, "")
	w.call("POST", "/api/auth/logout", "", "").expect(t, 204, "")
	w.callAs(with(stolen), "GET", "/api/auth/session", "", "").expect(t, 401, "not_logged_in")
}

// statements keeps what is sent to the database, in order.
type statements struct {
	mu  sync.Mutex
	all []string
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, data.SQL)
	return ctx
}

func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *statements) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.all
	s.all = nil
	return taken
}

// The same work, statement by statement, for an account that exists and for one that does not.
func TestLogInsDoTheSameWork(t *testing.T) {
	sent := &statements{}
	dsn := pgtest.New(t)
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.Tracer = sent
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	w := start(t, with("KUBEBYON_DATABASE_DSN", dsn), func(_ map[string]string, w *world) { w.pool = pool })
	work := func(email string, more ...string) []string {
		t.Helper()
		w.execute(t, `delete from login_failures`)
		sent.take()
		w.tryLogIn(email, "guess", more...).expect(t, 401, "wrong_credentials")
		done := sent.take()
		for range attempt.Free {
			w.tryLogIn(email, "guess")
		}
		sent.take()
		w.tryLogIn(email, "guess").expect(t, 401, "captcha_required")
		return append(done, sent.take()...)
	}
	known, unknown := work(adminEmail), work("nobody@example.com")
	if diff := cmp.Diff(known, unknown); diff != "" || len(known) < 5 {
		t.Errorf("%d statements for a known (-) and an unknown (+) address differ:\n%s", len(known), diff)
	}
}

// While log-ins wait for their hashes, others are served.
func TestLogInFloodLeavesReadsAnswering(t *testing.T) {
	w := start(t)
	solutions := make([]string, 40)
	for i := range solutions {
		solutions[i] = w.solved()
	}
	var waiting atomic.Int32
	var wg sync.WaitGroup
	for i, solution := range solutions {
		waiting.Add(1)
		wg.Go(func() {
			defer waiting.Add(-1)
			if a := w.tryLogIn(fmt.Sprintf("%d@example.com", i), "guess", solution); a.problem.Code != "wrong_credentials" && a.problem.Code != "login_busy" {
				t.Errorf("%d %s", a.status, a.text)
			}
		})
	}
	w.call("GET", "/api/auth/session", "", "").expect(t, 200, "")
	if waiting.Load() == 0 {
		t.Error("the read came after the whole flood")
	}
	wg.Wait()
}
