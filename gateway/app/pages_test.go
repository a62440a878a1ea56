package app_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// aPerson is a real browser without a session. Nothing that it asks for leaves this machine.
func aPerson(t *testing.T) context.Context {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"), chromedp.UserDataDir(t.TempDir()))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's own refuses root
	}
	allocated, done := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, closeTab := chromedp.NewContext(allocated)
	t.Cleanup(func() { closeTab(); done() })
	if err := chromedp.Do(ctx); err != nil { // starts it
		t.Fatal(err)
	}
	return ctx
}

// do fails with what the page says.
func do(t *testing.T, person context.Context, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(person, time.Minute)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		said, _ := chromedp.Run(person, chromedp.Text("body"))
		t.Fatalf("%v; the page says:\n%s", err, said)
	}
}

// until waits for what the expression says of the page.
func until(expression string) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		for {
			ok, err := chromedp.Evaluate[bool](expression)(ctx, target)
			if ok || err != nil {
				return chromedp.Void{}, err
			}
			select {
			case <-ctx.Done():
				return chromedp.Void{}, fmt.Errorf("never true: %s", expression)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
}

// says waits until the page's result holds the text.
func says(text string) chromedp.Action[chromedp.Void] {
	return until("document.getElementById('result').textContent.includes(`" + text + "`)")
}

// A person forgets the password, misreads the picture once, and sets a new one; the page does it all.
func TestPersonResetsPassword(t *testing.T) {
	w := start(t)
	sink, person := w.open(), aPerson(t)
	do(t, person,
		chromedp.Navigate(w.url+"/reset"),
		until(`document.getElementById('digits').naturalWidth > 0`),
		chromedp.SendKeys("#email", adminEmail), chromedp.SendKeys("#answer", "123456"), chromedp.Click("#ask button"),
		says("captcha"),
		until(`document.getElementById('answer').value === ''`),
		chromedp.SendKeys("#answer", "666666"), chromedp.Click("#ask button"),
		says("a code is on its way"),
	)
	code := mailedCode.FindString(sink.Wait(adminEmail).Text)
	do(t, person, chromedp.SendKeys("#code", code), chromedp.SendKeys("#password", newPassword), chromedp.Click("#reset button"), says("Done."))
	w.callAs(w.newBrowser(), "POST", "/api/auth/login", "", credentials(adminEmail, newPassword)).expect(t, http.StatusOK, "")
}

// People register with a code, and with an invitation's link, which is gone from the address afterwards.
func TestPersonRegisters(t *testing.T) {
	w := start(t)
	sink, person := w.open(), aPerson(t)
	do(t, person,
		chromedp.Navigate(w.url+"/register"),
		until(`document.getElementById('digits').naturalWidth > 0`),
		chromedp.SendKeys("#email", newEmail), chromedp.SendKeys("#answer", "666666"), chromedp.Click("#ask button"),
		says("on its way"),
	)
	code := mailedCode.FindString(sink.Wait(newEmail).Text)
	do(t, person, chromedp.SendKeys("#code", code), chromedp.SendKeys("#password", newPassword), chromedp.Click("#register button"), says(newEmail))

	var made struct{ Link string }
	w.call("POST", invitations, "", `{"email":"invited@example.com","role":"user"}`).json(t, &made)
	_, fragment, _ := strings.Cut(made.Link, "#")
	invited := aPerson(t)
	do(t, invited,
		chromedp.Navigate(w.url+"/register#"+fragment), chromedp.WaitNotVisible("#ask"),
		chromedp.SendKeys("#password", newPassword), chromedp.Click("#register button"), says("invited@example.com"),
	)
	address, err := chromedp.Run(invited, chromedp.Location())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(address, "invitation") {
		t.Errorf("the address still has the invitation: %s", address)
	}
}

// The pages behind links run their own scripts and no others, and are in nobody's frame.
func TestPagesBehindLinks(t *testing.T) {
	w := start(t)
	for _, path := range []string{"/register", "/reset", "/setup"} {
		a := w.callAs(w.newBrowser(), "GET", path, "", "")
		policy := a.header.Get("Content-Security-Policy")
		nonce := regexp.MustCompile(`script-src 'nonce-([A-Z0-9]+)'`).FindStringSubmatch(policy)
		if a.status != 200 || nonce == nil || !strings.Contains(policy, "default-src 'none'") || !strings.Contains(policy, "frame-ancestors 'none'") ||
			!strings.Contains(a.text, `nonce="`+nonce[1]+`"`) {
			t.Errorf("%s: %d %q", path, a.status, policy)
		}
	}
}
