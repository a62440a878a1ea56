package postgres_test

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubebyon/kubebyon/gateway/internal/attempt"
	store "github.com/kubebyon/kubebyon/gateway/internal/postgres"
)

func TestAttemptsNeedACaptchaAfterThreeFailures(t *testing.T) {
	s, pool := open(t)
	now := time.Date(2026, 12, 1, 12, 0, 0, 123456789, time.UTC)
	a := attempt.NewService(s, func() time.Time { return now })
	begin := func(email, client string, solved bool) (*attempt.Attempt, bool) {
		t.Helper()
		made, may, err := a.Begin(t.Context(), email, netip.MustParseAddr(client), solved)
		if err != nil {
			t.Fatal(err)
		}
		return made, may
	}
	may := func(what, email, client string, want bool) {
		t.Helper()
		made, got := begin(email, client, false)
		if got != want {
			t.Errorf("%s: %v", what, got)
		}
		if got {
			if err := made.Withdraw(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 3 {
		begin("known@example.com", fmt.Sprintf("192.0.2.%d", i), false)
	}
	may("the account", " KNOWN@example.com ", "192.0.2.9", false)
	may("another", "other@example.com", "192.0.2.9", true)
	for i := range 3 {
		begin(fmt.Sprintf("%d@example.com", i), fmt.Sprintf("2001:db8::%d", i), false)
	}
	may("the client's network", "other@example.com", "2001:db8::ffff", false)
	may("another network", "other@example.com", "2001:db8:0:1::1", true)
	may("a mapped address", "other@example.com", "::ffff:192.0.2.9", true)

	// A success clears the account and leaves the client as it was.
	passed, ok := begin("known@example.com", "2001:db8::1", true)
	if !ok {
		t.Fatal("a captcha did not help")
	}
	if err := passed.Passed(t.Context()); err != nil {
		t.Fatal(err)
	}
	may("after a success", "known@example.com", "192.0.2.9", true)
	may("the client after a success", "known@example.com", "2001:db8::1", false)

	now = now.Add(attempt.Window - time.Microsecond)
	may("just before the end", "known@example.com", "2001:db8::1", false)
	now = now.Add(time.Microsecond)
	may("at the end", "known@example.com", "2001:db8::1", true)

	// Neither what was withdrawn nor what succeeded is a failure.
	for i := range 10 {
		may(fmt.Sprintf("withdrawn, %d", i), "busy@example.com", "192.0.2.77", true)
		good, ok := begin("busy@example.com", "192.0.2.77", false)
		if !ok {
			t.Fatalf("%d good log-ins are too many", i)
		}
		if err := good.Passed(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	// Only addresses with a failure lately stay for long.
	for i := range 200 {
		now = now.Add(attempt.Window + time.Second)
		begin(fmt.Sprintf("%d@example.net", i), "192.0.2.1", true)
	}
	if n := count(t, pool, `select count(*) from login_failures`); n > 2*64+2 {
		t.Errorf("%d rows", n)
	}
}

// However many replicas are asked at once, only so many guesses go without a captcha.
func TestAttemptsAreExactOverReplicas(t *testing.T) {
	first, pool := open(t)
	replicas := []*attempt.Service{attempt.NewService(first, time.Now), attempt.NewService(store.NewStore(pool), time.Now)}
	var let atomic.Int32
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			_, may, err := replicas[i%2].Begin(t.Context(), "a@example.com", netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), false)
			if err != nil {
				t.Error(err)
			}
			if may {
				let.Add(1)
			}
		})
	}
	wg.Wait()
	if let.Load() != attempt.Free {
		t.Errorf("%d guesses", let.Load())
	}
}

func TestAttemptsAreBoundedOldestFirst(t *testing.T) {
	s, pool := open(t)
	now := time.Now().Truncate(time.Microsecond)
	key := func(i int) []byte { k := make([]byte, 32); k[0] = byte(i); return k }
	for i := range 20 {
		if _, err := s.Attempt(t.Context(), [][]byte{key(i)}, now.Add(time.Duration(i)*time.Second), now.Add(-time.Hour), 3, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.SweepAttempts(t.Context(), now, 5); err != nil {
		t.Fatal(err)
	}
	if n, old := count(t, pool, `select count(*) from login_failures`), count(t, pool, `select min(get_byte(key, 0)) from login_failures`); n != 5 || old != 15 {
		t.Errorf("%d rows from %d on", n, old)
	}
}
