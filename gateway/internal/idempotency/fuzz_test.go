package idempotency

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubebyon/kubebyon/gateway/internal/keyring"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

// A key that is taken is one header's whole value, and can be written into a log or a header as it is.
func FuzzKey(f *testing.F) {
	for _, seed := range []string{"", "a", "8e03978e-40d5-43dd-bc93-6894a57f9324", `"quoted"`, "a b", " a", "a\n", "a\x00", "ä", "\xff"} {
		f.Add(seed, "")
	}
	f.Fuzz(func(t *testing.T, value, second string) {
		key, given, err := Key([]string{value})
		if err != nil {
			if problem := fault.From(err); key != "" || given || problem.Code != "idempotency_key_invalid" || len(problem.Message) > 100 {
				t.Fatalf("%q: %q %v %v", value, key, given, err)
			}
		} else if !given || key != value || len(key) == 0 || len(key) > 255 {
			t.Fatalf("%q: %q %v", value, key, given)
		}
		for i := range len(key) {
			if key[i] <= ' ' || key[i] >= 0x7f {
				t.Fatalf("%q is a key", key)
			}
		}
		if _, given, err := Key([]string{value, second}); err == nil || given {
			t.Fatalf("two keys: %q %q", value, second)
		}
	})
}

// What was sealed is an answer, or is refused; whatever is an answer comes through whole.
func FuzzOpen(f *testing.F) {
	for _, seed := range []string{
		`{"status":201,"header":{"Location":["/x"]},"body":"e30K","objects":["cl_x"]}`, `{"status":204}`, `{"status":500}`, `{"status":200,"header":{"A: b":["c"]}}`,
		`{"status":200,"header":{"A":["b\r\nC: d"]}}`, `{"status":200} {}`, `{"status":2e2,"body":"!"}`, `null`, ``, `[]`,
	} {
		f.Add([]byte(seed), []byte{byCredential, 1, 2})
	}
	l := lockOf(f, ana, "k")
	ring, err := keyring.Parse(keyring.New())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, plain, sealed []byte) {
		if got, err := l.open(sealed, ring); err == nil {
			t.Fatalf("%q was sealed by nobody and gives %+v", sealed, got)
		}
		var a Answer
		for _, keys := range []keyring.Keyring{ring, {}} {
			inner := append([]byte{byCredential}, l.aead.Seal(nil, nil, plain, []byte(l.place))...)
			if a, err = l.open(inner, keys); err != nil {
				if problem := fault.From(err); problem.Code != "idempotency_answer_sealed" {
					t.Fatal(err)
				}
				return
			}
		}
		if a.Status < 200 || a.Status > 299 {
			t.Fatalf("%+v", a)
		}
		again, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		second, err := decode(again)
		if diff := cmp.Diff(a, second); err != nil || diff != "" {
			t.Fatalf("%v %s", err, diff)
		}
	})
}
