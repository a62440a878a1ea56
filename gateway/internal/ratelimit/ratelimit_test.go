package ratelimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	store "github.com/kubebyon/kubebyon/gateway/internal/postgres"
	"github.com/kubebyon/kubebyon/gateway/internal/postgres/migrations"
	"github.com/kubebyon/kubebyon/gateway/internal/ratelimit"
	"github.com/kubebyon/kubebyon/pkg/postgres"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

type limiter interface {
	Quota() ratelimit.Quota
	Allow(ctx context.Context, key string) (ratelimit.Result, error)
}

// clock is one that tests move.
type clock struct{ nanos atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.nanos.Store(time.Date(2026, 12, 1, 12, 0, 0, 123456000, time.UTC).UnixNano())
	return c
}

func (c *clock) now() time.Time          { return time.Unix(0, c.nanos.Load()) }
func (c *clock) advance(d time.Duration) { c.nanos.Add(int64(d)) }

func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), pgtest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := postgres.Migrate(t.Context(), pool, "gateway", migrations.FS); err != nil {
		t.Fatal(err)
	}
	return pool
}

// both runs a test for each kind of limiter, on a clock of its own.
func both(t *testing.T, q ratelimit.Quota, do func(t *testing.T, l limiter, c *clock)) {
	t.Helper()
	t.Run("local", func(t *testing.T) {
		c := newClock()
		l, err := ratelimit.NewLocal(q, c.now)
		if err != nil {
			t.Fatal(err)
		}
		do(t, l, c)
	})
	t.Run("shared", func(t *testing.T) {
		c := newClock()
		do(t, ratelimit.NewShared(q, store.NewStore(database(t)).Tries(c.now)), c)
	})
}

func allow(tb testing.TB, l limiter, key string) ratelimit.Result {
	tb.Helper()
	r, err := l.Allow(tb.Context(), key)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func TestBurstThenOneForEachInterval(t *testing.T) {
	both(t, ratelimit.Quota{Name: "auth", Every: 30 * time.Second, Burst: 5, Entries: 100}, func(t *testing.T, l limiter, c *clock) {
		t.Helper()
		expect := func(what string, want ratelimit.Result) {
			t.Helper()
			if got := allow(t, l, "k"); got != want {
				t.Errorf("%s: %+v, want %+v", what, got, want)
			}
		}
		if span := l.Quota().Span(); span != 150*time.Second {
			t.Error(span)
		}
		for i := range 5 {
			expect("the burst", ratelimit.Result{Allowed: true, Remaining: 4 - i, Reset: time.Duration(i+1) * 30 * time.Second})
		}
		expect("one too many", ratelimit.Result{Reset: 150 * time.Second, Retry: 30 * time.Second})
		c.advance(10 * time.Second)
		expect("too early", ratelimit.Result{Reset: 140 * time.Second, Retry: 20 * time.Second})
		c.advance(20*time.Second - time.Microsecond)
		expect("a microsecond too early", ratelimit.Result{Reset: 120*time.Second + time.Microsecond, Retry: time.Microsecond})
		c.advance(time.Microsecond)
		expect("after the time that it said", ratelimit.Result{Allowed: true, Reset: 150 * time.Second})
		expect("and not once more", ratelimit.Result{Reset: 150 * time.Second, Retry: 30 * time.Second})
		if r := allow(t, l, "another"); !r.Allowed || r.Remaining != 4 {
			t.Errorf("another key: %+v", r)
		}
		c.advance(75 * time.Second)
		expect("half of it", ratelimit.Result{Allowed: true, Remaining: 1, Reset: 105 * time.Second})
		c.advance(time.Hour)
		expect("all of it, and no more than that", ratelimit.Result{Allowed: true, Remaining: 4, Reset: 30 * time.Second})
	})
}

// Both kinds do the same, and what the rule says, whenever tries come.
func TestBothDoTheSame(t *testing.T) {
	for _, q := range []ratelimit.Quota{
		{Name: "a", Every: 30 * time.Second, Burst: 5, Entries: 100},
		{Name: "b", Every: time.Second, Burst: 1, Entries: 100},
		{Name: "c", Every: 10 * time.Millisecond, Burst: 50, Entries: 100},
	} {
		c := newClock()
		local, err := ratelimit.NewLocal(q, c.now)
		if err != nil {
			t.Fatal(err)
		}
		shared := ratelimit.NewShared(q, store.NewStore(database(t)).Tries(c.now))
		random := rand.New(rand.NewPCG(1, uint64(q.Burst)))
		full := map[string]time.Time{}
		allowed, refused := 0, 0
		for range 600 {
			c.advance(time.Duration(random.Int64N(int64(q.Every)*2/3/1000)) * time.Microsecond)
			key := fmt.Sprint(random.IntN(2))
			var want ratelimit.Result
			ahead := max(full[key].Sub(c.now()), 0)
			if want.Allowed = ahead+q.Every <= q.Span(); want.Allowed {
				allowed++
				ahead += q.Every
				want.Remaining = int((q.Span() - ahead) / q.Every)
			} else {
				refused++
				want.Retry = ahead + q.Every - q.Span()
			}
			want.Reset = ahead
			full[key] = c.now().Add(ahead)
			if got := allow(t, local, key); got != want {
				t.Fatalf("%s local: %+v, want %+v", q.Name, got, want)
			}
			if got := allow(t, shared, key); got != want {
				t.Fatalf("%s shared: %+v, want %+v", q.Name, got, want)
			}
		}
		if allowed < 50 || refused < 50 {
			t.Errorf("%s: %d allowed, %d refused", q.Name, allowed, refused)
		}
	}
}

// A hundred thousand clients once each, and those who came before: the oldest are forgotten, the newest are not, and there are
// never more than Entries.
func TestManyClientsAreBounded(t *testing.T) {
	const entries, clients = 2000, 100_000
	q := ratelimit.Quota{Name: "auth", Every: 30 * time.Second, Burst: 2, Entries: entries}

	t.Run("local", func(t *testing.T) {
		c := newClock()
		l, err := ratelimit.NewLocal(q, c.now)
		if err != nil {
			t.Fatal(err)
		}
		before := heap()
		flood(t, l, c, 0, clients, 1)
		if grown := heap() - before; grown > entries*1000 {
			t.Errorf("%d bytes for %d entries", grown, entries)
		}
		remembers(t, l, clients, entries)
	})
	t.Run("shared", func(t *testing.T) {
		c := newClock()
		pool := database(t)
		l := ratelimit.NewShared(q, store.NewStore(pool).Tries(c.now))
		count := func() (rows int) {
			t.Helper()
			if err := pool.QueryRow(t.Context(), `select count(*) from rate_limits`).Scan(&rows); err != nil {
				t.Fatal(err)
			}
			return rows
		}
		// Most of them came to a replica that was killed before it swept; the first ones to come after that make it right.
		const before = 80_000
		if _, err := pool.Exec(t.Context(), `insert into rate_limits (name, key, tat)
			select 'auth', sha256(convert_to('auth' || chr(10) || i, 'UTF8')), $1::timestamptz + '30s' + i * interval '1 microsecond' from generate_series(0, $2) as i`, c.now(), before-1); err != nil {
			t.Fatal(err)
		}
		if rows := count(); rows != before {
			t.Fatal(rows)
		}
		c.advance(before * time.Microsecond)
		most := 0
		flood(t, l, c, before, clients, 4, func() { most = max(most, count()) })
		if rows := count(); most > entries || rows > entries || rows < entries*3/4 {
			t.Errorf("%d rows, at most %d, for %d entries", rows, most, entries)
		}
		remembers(t, l, clients, entries*3/4)
	})
}

// flood lets each client from the first on try once, by so many at a time. look is called on the way.
func flood(t *testing.T, l limiter, c *clock, first, clients, workers int, look ...func()) {
	t.Helper()
	for begin := first; begin < clients; begin += 1000 {
		var wg sync.WaitGroup
		for worker := range workers {
			wg.Go(func() {
				for i := begin + worker; i < begin+1000; i += workers {
					if r, err := l.Allow(t.Context(), fmt.Sprint(i)); err != nil || !r.Allowed {
						t.Errorf("client %d: %+v %v", i, r, err)
						return
					}
				}
			})
		}
		wg.Wait()
		c.advance(time.Millisecond)
		for _, f := range look {
			f()
		}
	}
}

// remembers tries clients again: the first one is as new, and the latest ones are not.
func remembers(t *testing.T, l limiter, clients, latest int) {
	t.Helper()
	// A thousand come in the same moment of the clock: which of them are the older ones is open.
	for i := clients - latest + 1000; i < clients; i += 97 {
		if r := allow(t, l, fmt.Sprint(i)); r.Remaining != 0 {
			t.Fatalf("client %d of %d is forgotten: %+v", i, clients, r)
		}
	}
	for i := range 5 {
		if r := allow(t, l, fmt.Sprint(i)); r.Remaining != 1 {
			t.Errorf("client %d is remembered: %+v", i, r)
		}
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Exactly the oldest makes room.
func TestTheOldestMakesRoom(t *testing.T) {
	both(t, ratelimit.Quota{Name: "auth", Every: time.Minute, Burst: 3, Entries: 3}, func(t *testing.T, l limiter, c *clock) {
		t.Helper()
		next := func(key string, remaining int) {
			t.Helper()
			c.advance(time.Second)
			if r := allow(t, l, key); r.Remaining != remaining {
				t.Errorf("%s: %+v, want %d", key, r, remaining)
			}
		}
		next("a", 2)
		next("b", 2)
		next("c", 2)
		next("a", 1) // b is the oldest now
		next("d", 2)
		next("c", 1)
		next("a", 0)
		next("b", 2) // it was forgotten, and d is in its place
		next("c", 0)
		next("a", 0)
	})
}

// An exhausted key is not forgotten for as many fresh ones as somebody may bring.
func TestFreshKeysPushOutNoExhaustedOne(t *testing.T) {
	c := newClock()
	l := ratelimit.NewShared(ratelimit.Quota{Name: "login", Every: time.Minute, Burst: 3, Entries: 64}, store.NewStore(database(t)).Tries(c.now))
	for range 3 {
		allow(t, l, "victim")
	}
	for i := range 500 {
		c.advance(time.Millisecond)
		allow(t, l, fmt.Sprint(i))
	}
	if r := allow(t, l, "victim"); r.Allowed {
		t.Errorf("%+v", r)
	}
}

// Two replicas, with clocks that disagree, count as one.
func TestReplicasCountTogether(t *testing.T) {
	dsn := pgtest.New(t)
	var replicas []limiter
	for range 2 {
		pool, err := pgxpool.New(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		if err := postgres.Migrate(t.Context(), pool, "gateway", migrations.FS); err != nil {
			t.Fatal(err)
		}
		// The database's clock.
		replicas = append(replicas, ratelimit.NewShared(ratelimit.Quota{Name: "login", Every: time.Hour, Burst: 7, Entries: 100}, store.NewStore(pool).Tries(nil)))
	}
	var allowed, untrue atomic.Int32
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			r, err := replicas[i%2].Allow(t.Context(), "somebody")
			switch {
			case err != nil:
				t.Error(err)
			case r.Allowed:
				allowed.Add(1)
			case r.Retry <= 50*time.Minute || r.Retry > time.Hour || r.Reset > 7*time.Hour:
				untrue.Add(1)
			}
		})
	}
	wg.Wait()
	if allowed.Load() != 7 || untrue.Load() != 0 {
		t.Errorf("%d of 50 were allowed, %d were told a wrong time", allowed.Load(), untrue.Load())
	}
}

// In one process no try is lost or allowed twice either.
func TestTriesAtOnce(t *testing.T) {
	c := newClock()
	l, err := ratelimit.NewLocal(ratelimit.Quota{Name: "api", Every: time.Second, Burst: 500, Entries: 10}, c.now)
	if err != nil {
		t.Fatal(err)
	}
	var allowed atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 20 {
				if r, err := l.Allow(t.Context(), "somebody"); err != nil {
					t.Error(err)
				} else if r.Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if allowed.Load() != 500 {
		t.Errorf("%d of 1000 were allowed", allowed.Load())
	}
}

// What is kept for others to read is a hash, and each limit has its own.
func TestKeysAreHashed(t *testing.T) {
	pool := database(t)
	tries := store.NewStore(pool).Tries(nil)
	for _, name := range []string{"auth", "login"} {
		l := ratelimit.NewShared(ratelimit.Quota{Name: name, Every: time.Hour, Burst: 1, Entries: 100}, tries)
		if r := allow(t, l, "somebody@example.com"); !r.Allowed {
			t.Errorf("%s counts with another: %+v", name, r)
		}
	}
	var text string
	var keys int
	if err := pool.QueryRow(t.Context(), `select string_agg(encode(key, 'escape'), ' '), count(distinct key) from rate_limits`).Scan(&text, &keys); err != nil {
		t.Fatal(err)
	}
	if keys != 2 || len(text) < 64 || strings.Contains(text, "example") {
		t.Errorf("%d keys: %q", keys, text)
	}
}
