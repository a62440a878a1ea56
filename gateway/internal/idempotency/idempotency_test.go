package idempotency

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubebyon/kubebyon/gateway/internal/keyring"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

func TestKey(t *testing.T) {
	for _, c := range []struct {
		headers []string
		given   bool
		ok      bool
	}{
		{nil, false, true},
		{[]string{"a"}, true, true},
		{[]string{"8e03978e-40d5-43dd-bc93-6894a57f9324"}, true, true},
		{[]string{`"8e03978e"`}, true, true},
		{[]string{strings.Repeat("~", MaxKey)}, true, true},
		{[]string{strings.Repeat("~", MaxKey+1)}, false, false},
		{[]string{""}, false, false},
		{[]string{"a b"}, false, false},
		{[]string{"a\tb"}, false, false},
		{[]string{"a\x00"}, false, false},
		{[]string{"a\x7f"}, false, false},
		{[]string{"ключ"}, false, false},
		{[]string{"a\xff"}, false, false},
		{[]string{"a", "a"}, false, false},
		{[]string{"a", ""}, false, false},
	} {
		key, given, err := Key(c.headers)
		if given != c.given || (err == nil) != c.ok || (given && key != c.headers[0]) {
			t.Errorf("%q: %q %v %v", c.headers, key, given, err)
		}
		if f := fault.From(err); f != nil && (f.Kind != fault.Invalid || f.Code != "idempotency_key_invalid" || f.Field != Header || f.Action == "") {
			t.Errorf("%q: %+v", c.headers, f)
		}
	}
}

var (
	ana     = Asker{UserID: "usr_a", Credential: "ses_a", Secret: "canary-session-of-ana"}
	request = Request{Key: "k", Method: "POST", Path: "/api/console/clusters", Query: "", Body: []byte(`{"name":"demo"}`)}
	made    = Answer{Status: 201, Header: map[string][]string{"Location": {"/x"}, "Set-Cookie": {"a=b", "c=d"}}, Body: []byte("{\"token\":\"canary-token\"}\n"), Objects: []string{"pat_x"}}
)

func lockOf(tb testing.TB, a Asker, key string) lock {
	tb.Helper()
	l, err := newLock(a, key)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// Whatever makes it another request has another fingerprint, and nothing can be moved from one part into the next.
func TestFingerprint(t *testing.T) {
	seen := map[string]string{}
	for name, c := range map[string]struct {
		asker Asker
		Request
	}{
		"the request":        {ana, request},
		"another method":     {ana, Request{"k", "PUT", "/a", "b", []byte("c")}},
		"another path":       {ana, Request{"k", "POST", "/ab", "", []byte("c")}},
		"a query":            {ana, Request{"k", "POST", "/a", "b", []byte("c")}},
		"a longer body":      {ana, Request{"k", "POST", "/a", "", []byte("bc")}},
		"no body":            {ana, Request{"k", "POST", "/a", "bc", nil}},
		"another key":        {ana, Request{"l", "POST", "/a", "bc", nil}},
		"another account":    {Asker{"usr_b", "ses_a", ana.Secret}, request},
		"another credential": {Asker{"usr_a", "ses_b", ana.Secret}, request},
		"another secret":     {Asker{"usr_a", "ses_a", "other"}, request},
	} {
		stamp := lockOf(t, c.asker, c.Key).fingerprint(c.Request)
		if other := seen[string(stamp)]; other != "" || len(stamp) != 32 {
			t.Errorf("%s and %s have the same of %d bytes", name, other, len(stamp))
		}
		seen[string(stamp)] = name
		if again := lockOf(t, c.asker, c.Key).fingerprint(c.Request); !bytes.Equal(again, stamp) {
			t.Errorf("%s: a second time it is another one", name)
		}
	}
}

func TestAnswersAreSealed(t *testing.T) {
	ring, err := keyring.Parse(keyring.New())
	if err != nil {
		t.Fatal(err)
	}
	other, err := keyring.Parse(keyring.New())
	if err != nil {
		t.Fatal(err)
	}
	for name, keys := range map[string]keyring.Keyring{"with a keyring": ring, "without": {}} {
		l := lockOf(t, ana, "k")
		sealed, err := l.seal(made, keys)
		if err != nil || bytes.Contains(sealed, []byte("canary")) {
			t.Fatalf("%s: %q %v", name, sealed, err)
		}
		got, err := l.open(sealed, keys)
		if diff := cmp.Diff(made, got); diff != "" || err != nil {
			t.Errorf("%s: %v %s", name, err, diff)
		}
		refused := func(what string, l lock, sealed []byte, keys keyring.Keyring) {
			t.Helper()
			if got, err := l.open(sealed, keys); fault.From(err) == nil || fault.From(err).Code != "idempotency_answer_sealed" || got.Status != 0 {
				t.Errorf("%s: %s: %+v %v", name, what, got, err)
			}
		}
		refused("another session's", lockOf(t, Asker{ana.UserID, "ses_b", "other"}, "k"), sealed, keys)
		refused("its id with another secret", lockOf(t, Asker{ana.UserID, ana.Credential, "other"}, "k"), sealed, keys)
		refused("another key's row", lockOf(t, ana, "l"), sealed, keys)
		refused("another account's row", lockOf(t, Asker{"usr_b", ana.Credential, ana.Secret}, "k"), sealed, keys)
		refused("nothing", l, nil, keys)
		for i := range sealed {
			changed := bytes.Clone(sealed)
			changed[i] ^= 1
			refused("a changed byte", l, changed, keys)
			refused("a part", l, sealed[:i], keys)
		}
		if name == "with a keyring" {
			refused("another keyring", l, sealed, other)
			refused("no keyring any more", l, sealed, keyring.Keyring{})
		}
	}
}

func TestAnswersThatAreTooLarge(t *testing.T) {
	l := lockOf(t, ana, "k")
	fits := Answer{Status: 200, Body: bytes.Repeat([]byte("x"), MaxAnswer)}
	if sealed, err := l.seal(fits, keyring.Keyring{}); err != nil || sealed == nil {
		t.Errorf("%d bytes: %v", len(fits.Body), err)
	}
	large := Answer{Status: 200, Body: fits.Body, Header: map[string][]string{"A": nil}}
	if sealed, err := l.seal(large, keyring.Keyring{}); err != nil || sealed != nil {
		t.Errorf("one more: %d %v", len(sealed), err)
	}
}

func TestJudge(t *testing.T) {
	asked := Record{Credential: "ses_a", Fingerprint: []byte("same")}
	for _, c := range []struct {
		name  string
		found Record
		code  string
	}{
		{"done", Record{Credential: "ses_a", Fingerprint: []byte("same"), Done: true, Answer: []byte("x")}, ""},
		{"done, too large", Record{Credential: "ses_a", Fingerprint: []byte("same"), Done: true}, "idempotency_answer_sealed"},
		{"at work", Record{Credential: "ses_a", Fingerprint: []byte("same")}, "idempotency_in_progress"},
		{"another, done", Record{Credential: "ses_a", Fingerprint: []byte("other"), Done: true, Answer: []byte("x")}, "idempotency_key_reused"},
		{"another, at work", Record{Credential: "ses_a", Fingerprint: []byte("other")}, "idempotency_key_reused"},
		{"by another credential, done", Record{Credential: "pat_b", Fingerprint: []byte("same"), Done: true, Answer: []byte("x")}, "idempotency_answer_sealed"},
		{"by another credential, at work", Record{Credential: "pat_b", Fingerprint: []byte("other")}, "idempotency_in_progress"},
	} {
		code := ""
		if f := fault.From(judge(c.found, asked)); f != nil {
			if code = f.Code; f.Kind != fault.Conflict || f.Field != Header || f.Action == "" {
				t.Errorf("%s: %+v", c.name, f)
			}
		}
		if code != c.code {
			t.Errorf("%s: %q, want %q", c.name, code, c.code)
		}
	}
}

// lost gives every key away, and has them taken by somebody else meanwhile.
type lost struct{ Store }

func (lost) HoldKey(context.Context, string, []byte, Record, time.Duration, int) (bool, Record, error) {
	return true, Record{}, nil
}

func (lost) KeepAnswer(context.Context, string, []byte, string, []byte, time.Duration) (bool, error) {
	return false, nil
}

func TestAClaimThatIsLost(t *testing.T) {
	c, before, err := NewService(lost{}, keyring.Keyring{}).Begin(t.Context(), ana, request)
	if err != nil || before != nil {
		t.Fatal(before, err)
	}
	if f := fault.From(c.Keep(t.Context(), made)); f == nil || f.Code != "idempotency_claim_lost" {
		t.Error(f)
	}
}
