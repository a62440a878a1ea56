package app_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/kubebyon/kubebyon/pkg/test/smtptest"
)

const (
	codes     = "/api/auth/code"
	register  = "/api/auth/register"
	reset     = "/api/auth/reset-password"
	change    = "/api/auth/change-password"
	oneUser   = users + "/{user_id}"
	oneInvite = invitations + "/{invitation_id}"

	newEmail, newPassword = "new@example.com", "canary-new-password-91"
)

// open lets everybody register, with mail to the sink that it gives.
func (w *world) open() *smtptest.Sink {
	w.t.Helper()
	sink := smtptest.New(w.t)
	for _, body := range []string{mailThrough(sink, "none", ""), `{"settings":{"registration_mode":"open","public_base_url":"https://kubebyon.example.com"}}`} {
		if a := w.call("PUT", settings, "", body); a.status != http.StatusOK {
			w.t.Fatal(a.text)
		}
	}
	return sink
}

// askCode asks for a code with a solved captcha.
func (w *world) askCode(email, purpose string) answer {
	w.t.Helper()
	return w.callAs(w.newBrowser(), "POST", codes, "", `{"email":"`+email+`","purpose":"`+purpose+`",`+w.solved()+`}`)
}

var mailedCode = regexp.MustCompile(`[0-9A-Z]{5}-[0-9A-Z]{5}`)

// code asks for a code and reads it from the mail.
func (w *world) code(sink *smtptest.Sink, email, purpose string) string {
	w.t.Helper()
	if a := w.askCode(email, purpose); a.status != http.StatusAccepted {
		w.t.Fatal(a.text)
	}
	found := mailedCode.FindString(sink.Wait(email).Text)
	if found == "" {
		w.t.Fatal("the mail has no code")
	}
	w.secrets.keep(found, "a mail")
	return found
}

func credentials(email, password string) string {
	return `{"email":"` + email + `","password":"` + password + `"}`
}

func withCode(email, code, password string) string {
	return `{"email":"` + email + `","code":"` + code + `","password":"` + password + `"}`
}

// An answer without what differs from one request to the next.
func (a answer) bare() string {
	return regexp.MustCompile(`"trace_id":"[0-9a-f]+"`).ReplaceAllString(a.text, "")
}

func TestRegisterWithACode(t *testing.T) {
	w := start(t)
	w.askCode(newEmail, "register").expect(t, 403, "registration_closed")
	w.askCode(adminEmail, "register").expect(t, 403, "registration_closed")
	w.askCode(newEmail, "reset_password").expect(t, 409, "mail_unset")
	sink := w.open()
	code := w.code(sink, newEmail, "register")

	w.callAs(w.newBrowser(), "POST", register, "", withCode(newEmail, "AAAAA-AAAAA", newPassword)).expect(t, 400, "code_wrong")
	w.callAs(w.newBrowser(), "POST", register, "", withCode("other@example.com", code, newPassword)).expect(t, 400, "code_wrong")
	w.callAs(w.newBrowser(), "POST", reset, "", withCode(newEmail, code, newPassword)).expect(t, 400, "code_wrong")
	w.callAs(w.newBrowser(), "POST", register, "", withCode(newEmail, code, newEmail)).expect(t, 400, "password_is_email")
	w.callAs(w.newBrowser(), "POST", register, "", withCode(newEmail, code, "short")).expect(t, 400, "password_too_short")

	// A cookie that somebody planted before is not the session afterwards.
	planted := w.newBrowser()
	a := w.callAs(planted, "POST", register, "", withCode(newEmail, strings.ToLower(strings.ReplaceAll(code, "-", "")), newPassword),
		"Cookie", "kubebyon_session="+strings.Repeat("A", 43))
	if cookie := a.header.Get("Set-Cookie"); a.status != http.StatusCreated || !strings.HasPrefix(cookie, "kubebyon_session=") || strings.Contains(cookie, "AAAAAAAA") {
		t.Fatalf("%d %q %s", a.status, cookie, a.text)
	}
	if a := w.callAs(planted, "GET", "/api/auth/session", "", ""); !strings.Contains(a.text, newEmail) || !strings.Contains(a.text, `"role":"user"`) {
		t.Error(a.text)
	}
	w.callAs(w.newBrowser(), "POST", register, "", withCode(newEmail, code, newPassword)).expect(t, 400, "code_wrong")
	w.callAs(w.newBrowser(), "POST", "/api/auth/login", "", credentials("New@Example.com", newPassword)).expect(t, 200, "")

	// Whoever has an account is told so by mail, and by nothing else.
	unknown, known := w.askCode("nobody@example.com", "register"), w.askCode(adminEmail, "register")
	if unknown.status != 202 || known.status != unknown.status || known.bare() != unknown.bare() {
		t.Errorf("%d %s and %d %s", unknown.status, unknown.text, known.status, known.text)
	}
	if m := sink.Wait(adminEmail); mailedCode.MatchString(m.Text) || !strings.Contains(m.Text, "https://kubebyon.example.com/reset") {
		t.Errorf("%s", m.Text)
	}
	if sink.Wait("nobody@example.com").Text == "" {
		t.Error("no mail")
	}
}

// Of two who use one code at once, one gets the account.
func TestOneCodeMakesOneAccount(t *testing.T) {
	w := start(t)
	code := w.code(w.open(), newEmail, "register")
	var wait sync.WaitGroup
	statuses := make([]int, 4)
	for i := range statuses {
		wait.Go(func() {
			statuses[i] = w.callAs(w.newBrowser(), "POST", register, "", withCode(newEmail, code, newPassword)).status
		})
	}
	wait.Wait()
	made := 0
	for _, status := range statuses {
		if status == http.StatusCreated {
			made++
		}
	}
	if made != 1 {
		t.Errorf("%v", statuses)
	}
}

func TestResetPassword(t *testing.T) {
	w := start(t)
	sink := w.open()
	unknown, known := w.askCode("nobody@example.com", "reset_password"), w.askCode(adminEmail, "reset_password")
	if unknown.status != 202 || known.status != unknown.status || known.bare() != unknown.bare() {
		t.Errorf("%d %s and %d %s", unknown.status, unknown.text, known.status, known.text)
	}
	old := mailedCode.FindString(sink.Wait(adminEmail).Text)
	code := w.code(sink, adminEmail, "reset_password")
	for code == old { // Wait may have given the first mail again
		code = mailedCode.FindString(sink.Messages()[len(sink.Messages())-1].Text)
	}
	for _, m := range sink.Messages() {
		if m.To == "nobody@example.com" {
			t.Errorf("a mail to nobody: %s", m.Text)
		}
	}
	stranger := w.newBrowser()
	right, wrong := w.callAs(stranger, "POST", reset, "", withCode(adminEmail, old, newPassword)), w.callAs(stranger, "POST", reset, "", withCode("nobody@example.com", old, newPassword))
	if right.status != 400 || right.bare() != wrong.bare() {
		t.Errorf("an older code: %s and %s", right.text, wrong.text)
	}
	a := w.callAs(stranger, "POST", reset, "", withCode(adminEmail, code, newPassword))
	if a.status != http.StatusNoContent || a.header.Get("Set-Cookie") != "" {
		t.Fatalf("%d %v %s", a.status, a.header, a.text)
	}
	w.call("GET", "/api/auth/session", "", "").expect(t, 401, "not_logged_in")
	w.callAs(stranger, "POST", "/api/auth/login", "", credentials(adminEmail, adminPassword)).expect(t, 401, "wrong_credentials")
	w.callAs(stranger, "POST", "/api/auth/login", "", credentials(adminEmail, newPassword)).expect(t, 200, "")
	w.callAs(stranger, "POST", reset, "", withCode(adminEmail, code, adminPassword)).expect(t, 400, "code_wrong")
	w.eventually(func() bool {
		all := sink.Messages()
		return strings.Contains(all[len(all)-1].Subject, "was changed")
	})
}

// Five tries, right or wrong, and a code is dead.
func TestCodeTriesAreBounded(t *testing.T) {
	w := start(t)
	code := w.code(w.open(), adminEmail, "reset_password")
	for range 5 {
		w.callAs(w.newBrowser(), "POST", reset, "", withCode(adminEmail, "AAAAA-AAAAA", newPassword)).expect(t, 400, "code_wrong")
	}
	w.callAs(w.newBrowser(), "POST", reset, "", withCode(adminEmail, code, newPassword)).expect(t, 400, "code_wrong")
	w.call("GET", "/api/auth/session", "", "").expect(t, 200, "")
}

func TestChangePassword(t *testing.T) {
	w := start(t)
	other := w.newBrowser()
	w.callAs(other, "POST", "/api/auth/login", "", credentials(adminEmail, adminPassword)).expect(t, 200, "")
	token, _ := w.makeToken(w.browser, "ci", `"write"`)
	body := func(current, fresh string) string {
		return `{"current_password":"` + current + `","new_password":"` + fresh + `"}`
	}
	w.callAs(w.newBrowser(), "POST", change, "", body(adminPassword, newPassword), "Authorization", "Bearer "+token).expect(t, 403, "session_required")
	w.call("POST", change, "", body(adminPassword, "short")).expect(t, 400, "password_too_short")
	w.call("POST", change, "", body(adminPassword, newPassword)).expect(t, 204, "")
	w.call("GET", "/api/auth/session", "", "").expect(t, 200, "")
	w.callAs(other, "GET", "/api/auth/session", "", "").expect(t, 401, "not_logged_in")
	w.callAs(other, "POST", "/api/auth/login", "", credentials(adminEmail, newPassword)).expect(t, 200, "")

	// Who has only the session does not find the password out here.
	for range 3 {
		w.call("POST", change, "", body("wrong", adminPassword)).expect(t, 403, "current_password_wrong")
	}
	w.call("POST", change, "", body(newPassword, adminPassword)).expect(t, 401, "captcha_required")
}

func TestInvitations(t *testing.T) {
	w := start(t)
	invite := func(body string) answer { return w.call("POST", invitations, "", body) }
	const body = `{"email":"` + newEmail + `","role":"admin"}`
	invite(body).expect(t, 403, "registration_closed")
	w.call("PUT", settings, "", `{"settings":{"registration_mode":"invite"}}`).expect(t, 200, "")
	invite(body).expect(t, 409, "public_base_url_unset")
	w.call("PUT", settings, "", `{"settings":{"public_base_url":"https://kubebyon.example.com"}}`).expect(t, 200, "")
	invite(`{"email":"`+adminEmail+`","role":"user"}`).expect(t, 409, "email_taken")
	invite(`{"email":"x@example.com","role":"root"}`).expect(t, 400, "role_invalid")
	w.askCode(newEmail, "register").expect(t, 403, "invitation_required")

	given := func(a answer) (id, token string) {
		t.Helper()
		var made struct {
			Invitation struct{ ID string }
			Link       string
		}
		a.json(t, &made)
		before, token, ok := strings.Cut(made.Link, "#invitation=")
		if a.status != 201 || !ok || before != "https://kubebyon.example.com/register" {
			t.Fatalf("%d %s", a.status, a.text)
		}
		return made.Invitation.ID, token
	}
	id, withdrawn := given(invite(body))
	if a := w.call("GET", invitations, "", ""); !strings.Contains(a.text, id) || strings.Contains(a.text, withdrawn) {
		t.Error(a.text)
	}
	w.call("DELETE", oneInvite, id, "").expect(t, 204, "")
	w.call("DELETE", oneInvite, id, "").expect(t, 404, "invitation_not_found")
	_, token := given(invite(body))
	use := func(browser *http.Client, token string) answer {
		return w.callAs(browser, "POST", register, "", `{"invitation":"`+token+`","password":"`+newPassword+`"}`)
	}
	use(w.newBrowser(), withdrawn).expect(t, 403, "invitation_invalid")
	w.call("PUT", settings, "", `{"settings":{"registration_mode":"closed"}}`).expect(t, 200, "")
	use(w.newBrowser(), token).expect(t, 403, "registration_closed")
	w.call("PUT", settings, "", `{"settings":{"registration_mode":"invite"}}`).expect(t, 200, "")
	w.callAs(w.newBrowser(), "POST", register, "", `{"invitation":"`+token+`","email":"x@example.com","password":"`+newPassword+`"}`).expect(t, 400, "invitation_alone")
	made := w.newBrowser()
	use(made, token).expect(t, 201, "")
	w.callAs(made, "GET", users, "", "").expect(t, 200, "") // an administrator, as the invitation said
	use(w.newBrowser(), token).expect(t, 403, "invitation_invalid")

	_, late := given(invite(`{"email":"late@example.com","role":"user"}`))
	w.execute(t, `update invitations set expires_at = now() - interval '1 second'`)
	use(w.newBrowser(), late).expect(t, 403, "invitation_invalid")
}

func TestUsers(t *testing.T) {
	w := start(t)
	const plainID, plainEmail = "usr_plainplainplainplain", "plain@example.com"
	plain := w.addPlain(t, plainID, plainEmail)
	token, _ := w.makeToken(plain, "ci", `"read"`)
	adminID := w.idOf(adminEmail)
	for i := range 3 {
		w.execute(t, `insert into users (id, email, password_hash, role) values ($1, $2, '', 'user')`,
			"usr_pagepagepagepagepag"+string(rune('a'+i)), "page"+string(rune('a'+i))+"@example.com")
	}
	var page struct {
		Users []struct{ ID, Email string }
		Next  string `json:"next_cursor"`
	}
	w.call("GET", users, "?q=page&limit=2", "").json(t, &page)
	if len(page.Users) != 2 || page.Users[0].Email != "pagea@example.com" || page.Next == "" {
		t.Errorf("%+v", page)
	}
	next := page.Next
	page.Users, page.Next = nil, ""
	w.call("GET", users, "?q=page&limit=2&cursor="+next, "").json(t, &page)
	if len(page.Users) != 1 || page.Users[0].Email != "pagec@example.com" || page.Next != "" {
		t.Errorf("%+v", page)
	}
	if a := w.call("GET", users, "?q=%25", ""); strings.Contains(a.text, "example.com") {
		t.Errorf("a wildcard found %s", a.text)
	}
	w.call("GET", users, "?limit=201", "").expect(t, 400, "limit_invalid")
	w.call("GET", users, "?cursor=x", "").expect(t, 400, "cursor_invalid")
	if a := w.call("GET", oneUser, plainID, ""); !strings.Contains(a.text, plainEmail) || !strings.Contains(a.text, `"disabled":false`) {
		t.Error(a.text)
	}
	for _, id := range []string{"usr_x", "usr_*aaaaaaaaaaaaaaaaaaa", "usr_aaaaaaaaaaaaaaaaaaa.", "%3E", "%20", "usr_AAAAAAAAAAAAAAAAAAAA", "usr_aaaaaaaaaaaaaaaaaaaa%0a"} {
		for _, method := range []string{"GET", "PATCH", "DELETE"} {
			w.call(method, oneUser, id, map[string]string{"PATCH": `{"disabled":true}`}[method]).expect(t, 404, "user_not_found")
		}
		w.call("DELETE", oneInvite, id, "").expect(t, 404, "invitation_not_found")
	}

	// The last administrator stays one, whatever several do at once.
	for _, body := range []string{`{"role":"user"}`, `{"disabled":true}`} {
		w.call("PATCH", oneUser, adminID, body).expect(t, 409, "last_admin")
	}
	w.call("DELETE", oneUser, adminID, "").expect(t, 409, "last_admin")

	// Disabling ends everything that the account holds, at once, and says no more than a wrong password.
	w.callAs(plain, "GET", clusters, "", "").expect(t, 200, "")
	w.call("PATCH", oneUser, plainID, `{"disabled":true}`).expect(t, 200, "")
	w.callAs(plain, "GET", clusters, "", "").expect(t, 401, "not_logged_in")
	w.callAs(w.bare(), "GET", clusters, "", "", "Authorization", "Bearer "+token).expect(t, 401, "token_invalid")
	right := w.callAs(w.newBrowser(), "POST", "/api/auth/login", "", credentials(plainEmail, adminPassword))
	wrong := w.callAs(w.newBrowser(), "POST", "/api/auth/login", "", credentials("nobody@example.com", adminPassword))
	if right.status != 401 || right.bare() != wrong.bare() {
		t.Errorf("%s and %s", right.text, wrong.text)
	}
	w.call("PATCH", oneUser, plainID, `{"disabled":false,"role":"admin"}`).expect(t, 200, "")
	second := w.newBrowser()
	w.callAs(second, "POST", "/api/auth/login", "", credentials(plainEmail, adminPassword)).expect(t, 200, "")

	// Two administrators demote each other at once: one of them stays.
	var wait sync.WaitGroup
	statuses := make([]int, 2)
	wait.Go(func() { statuses[0] = w.call("PATCH", oneUser, plainID, `{"role":"user"}`).status })
	wait.Go(func() { statuses[1] = w.callAs(second, "PATCH", oneUser, adminID, `{"role":"user"}`).status })
	wait.Wait()
	if left := w.count(t, `select count(*) from users where role = 'admin' and disabled_at is null`); left != 1 {
		t.Errorf("%d administrators after %v", left, statuses)
	}
	boss, gone, goneClient := w.browser, plainID, second
	if w.call("GET", users, "", "").status != 200 {
		boss, gone, goneClient = second, adminID, w.browser
	}
	w.callAs(boss, "DELETE", oneUser, gone, "").expect(t, 204, "")
	w.callAs(boss, "GET", oneUser, gone, "").expect(t, 404, "user_not_found")
	w.callAs(goneClient, "GET", clusters, "", "").expect(t, 401, "not_logged_in")
}

// What strangers may send to the routes that they reach, and what it comes to.
func TestBadRegistrations(t *testing.T) {
	w := start(t)
	sink := w.open()
	huge := strings.Repeat("x", 1<<20)
	w.callAs(w.newBrowser(), "POST", "/api/auth/login", "", credentials(adminEmail, huge)).expect(t, 413, "body_too_large")
	w.callAs(w.newBrowser(), "POST", register, "", withCode(newEmail, "AAAAA-AAAAA", huge)).expect(t, 413, "body_too_large")
	w.callAs(w.newBrowser(), "POST", register, "", withCode(newEmail, "AAAAA-AAAAA", strings.Repeat("x", 1025))).expect(t, 400, "password_too_long")
	for _, email := range []string{
		`a@example.com\r\nBcc: victim@example.com`, `a@example.com\nSubject: x`, `a@example.com,victim@example.com`, `\u0430dmin@kubebyon.local`,
		`admin@kubebyon.loca\u217c`, `\u212ac@example.com`, `a@example.com\u0000`, `\"a b\"@example.com`, `a@b@c`, `<a@example.com>`, `a@ex\u00e4mple.com`,
	} {
		for _, purpose := range []string{"register", "reset_password"} {
			w.askCode(email, purpose).expect(t, 400, "email_invalid")
		}
		w.callAs(w.newBrowser(), "POST", register, "", withCode(email, "AAAAA-AAAAA", newPassword)).expect(t, 400, "email_invalid")
		w.call("POST", invitations, "", `{"email":"`+email+`","role":"user"}`).expect(t, 400, "email_invalid")
	}
	w.askCode(newEmail, "other").expect(t, 400, "purpose_invalid")
	w.callAs(w.newBrowser(), "POST", codes, "", `{"email":"`+newEmail+`","purpose":"register"}`).expect(t, 400, "captcha_required")
	w.callAs(w.newBrowser(), "POST", codes, "", `{"email":"`+newEmail+`","purpose":"register","captcha_id":"cap_aaaaaaaaaaaaaaaaaaaa","captcha_answer":"1"}`).expect(t, 400, "captcha_wrong")
	if sent := sink.Messages(); len(sent) > 0 {
		t.Errorf("mail was sent: %+v", sent[0])
	}
	if n := w.count(t, `select count(*) from users`); n != 1 {
		t.Errorf("%d accounts", n)
	}
}

// However many clients ask, one mailbox gets five mails at once; whoever solves no captcha uses none of them up.
func TestMailsToOneAddressAreLimited(t *testing.T) {
	w := limited(t)
	sink := w.open()
	ask := func(client, more string) answer {
		return w.callAs(w.newBrowser(), "POST", codes, "", `{"email":"`+newEmail+`","purpose":"register"`+more+`}`, from(client)...)
	}
	for i := range 10 {
		ask(fmt.Sprintf("192.0.2.%d", i), "").expect(t, 400, "captcha_required")
	}
	for i := range 5 {
		ask(fmt.Sprintf("198.51.100.%d", i), ","+w.solvedFrom(fmt.Sprintf("198.51.100.%d", i))).expect(t, 202, "")
	}
	ask("203.0.113.1", ","+w.solvedFrom("203.0.113.1")).expect(t, 429, "rate_limited")
	w.eventually(func() bool { return len(sink.Messages()) == 5 })
}
