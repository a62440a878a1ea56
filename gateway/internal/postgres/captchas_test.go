package postgres_test

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/gateway/internal/captcha"
	"github.com/kubebyon/kubebyon/pkg/fault"
)

func sixes(n int) []byte { return bytes.Repeat([]byte{6}, n) }

func TestCaptchaCountsOnce(t *testing.T) {
	s, pool := open(t)
	now := time.Now()
	c := captcha.NewService(s, sixes, func() time.Time { return now })
	made := func() string {
		t.Helper()
		m, err := c.New(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return m.ID
	}
	code := func(id, answer string) string {
		t.Helper()
		if f := fault.From(c.Check(t.Context(), id, answer)); f != nil {
			return f.Code
		}
		return ""
	}
	id := made()
	for i, c := range []struct{ id, answer, want string }{
		{"", "", "captcha_required"}, {id, "", "captcha_required"}, {"", "666666", "captcha_required"},
		{"cap_aaaaaaaaaaaaaaaaaaaa", "666666", "captcha_wrong"}, {id, "666 666", ""}, {id, "666666", "captcha_wrong"},
	} {
		if got := code(c.id, c.answer); got != c.want {
			t.Errorf("%d: %q, want %q", i, got, c.want)
		}
	}
	id = made()
	if code(id, "666667") != "captcha_wrong" || code(id, "666666") != "captcha_wrong" {
		t.Error("a wrong answer left another try")
	}
	id, other := made(), made()
	now = now.Add(captcha.Life)
	if code(id, "666666") != "captcha_wrong" {
		t.Error("it counted after its time")
	}
	made()
	if n := count(t, pool, `select count(*) from captchas`); n != 1 {
		t.Errorf("%d rows with the expired %s", n, other)
	}

	id = made()
	var right atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if c.Check(t.Context(), id, "666666") == nil {
				right.Add(1)
			}
		})
	}
	wg.Wait()
	if right.Load() != 1 {
		t.Errorf("one answer counted %d times", right.Load())
	}
}

func TestCaptchasAreBoundedOldestFirst(t *testing.T) {
	s, pool := open(t)
	now := time.Now()
	hash := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 32) }
	for i := range 20 {
		if err := s.AddCaptcha(t.Context(), hash(i), hash(i), now, now.Add(time.Minute+time.Duration(i)*time.Second), 5); err != nil {
			t.Fatal(err)
		}
	}
	if n := count(t, pool, `select count(*) from captchas`); n != 5 {
		t.Errorf("%d rows", n)
	}
	if _, err := s.TakeCaptcha(t.Context(), hash(14), now); !fault.Is(err, fault.NotFound) {
		t.Errorf("an old one is there: %v", err)
	}
	if _, err := s.TakeCaptcha(t.Context(), hash(15), now); err != nil {
		t.Error(err)
	}
}
