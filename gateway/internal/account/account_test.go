package account

import (
	"context"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

func TestCheckEmail(t *testing.T) {
	for _, email := range []string{"admin@kubebyon.local", "a@b", " Admin@Example.COM ", "a.b+c@x-y.example"} {
		if err := CheckEmail(email); err != nil {
			t.Errorf("%q refused: %v", email, err)
		}
	}
	for _, email := range []string{
		"", "a", "@b", "a@", "a@@b", "a@b@c", "a b@c", "a@b\nBcc: x@y", "a,b@c", "<a@b>", "a@b>", "\"a b\"@c", "a@.b", "a@b..c", "a@-b",
		"admin@\u212aubebyon.local", "\u00a0a@b", "аdmin@example.com", "admin@exаmple.com", "a@b\x00", strings.Repeat("a", 65) + "@b", "a@" + strings.Repeat("b.", 150) + "c",
	} {
		if err := CheckEmail(email); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q let through: %v", email, err)
		}
	}
}

func TestCheckPassword(t *testing.T) {
	for password, code := range map[string]string{
		"":                           "password_too_short",
		"elevenchars":                "password_too_short",
		"twelve chars":               "",
		"пароль-пароль":              "",
		"ключключключ":               "",
		strings.Repeat("x", 1024):    "",
		strings.Repeat("x", 1025):    "password_too_long",
		strings.Repeat("x", 1000000): "password_too_long",
		"twelve chars\xff":           "password_invalid",
	} {
		err := CheckPassword(password)
		if got := fault.From(err); (err == nil) != (code == "") || (err != nil && got.Code != code) {
			t.Errorf("%.20q (%d bytes): %v, want %q", password, len(password), err, code)
		}
	}
}

func TestNewID(t *testing.T) {
	form := regexp.MustCompile(`^usr_[a-z0-9]{20}$`)
	seen := map[string]bool{}
	for range 1000 {
		id := newID()
		if !form.MatchString(id) || seen[id] {
			t.Fatalf("%q: wrong form, or twice", id)
		}
		seen[id] = true
	}
}

func TestHasherIsBounded(t *testing.T) {
	h, err := NewHasher(1, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	hash, err := h.Hash(t.Context(), "correct horse battery")
	if err != nil {
		t.Fatal(err)
	}
	for password, want := range map[string]bool{"correct horse battery": true, "wrong": false, "": false} {
		if ok, err := h.Verify(t.Context(), password, hash); err != nil || ok != want {
			t.Errorf("%q: %v, %v", password, ok, err)
		}
	}
	if ok, err := h.Verify(t.Context(), "", ""); err != nil || ok {
		t.Errorf("nobody's hash: %v, %v", ok, err)
	}

	h.slots <- struct{}{} // the one place is taken
	h.wait = 50 * time.Millisecond
	var busy atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := h.Verify(t.Context(), "x", hash); fault.Is(err, fault.Unavailable) {
				busy.Add(1)
			}
		})
	}
	wg.Wait()
	if busy.Load() != 20 {
		t.Errorf("%d of 20 were told to come back", busy.Load())
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.Hash(gone, "x"); err == nil {
		t.Error("a caller that left got a hash")
	}
	<-h.slots
	h.wait = time.Minute
	for range 2 { // after a rest
		if _, err := h.Hash(t.Context(), "x"); err != nil {
			t.Errorf("the free place is not usable: %v", err)
		}
	}
}
