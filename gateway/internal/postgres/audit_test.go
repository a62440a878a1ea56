package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/kubebyon/kubebyon/gateway/internal/audit"
	store "github.com/kubebyon/kubebyon/gateway/internal/postgres"
)

var noon = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func event(at time.Time) audit.Event {
	return audit.Event{At: at, Actor: "usr_aaaaaaaaaaaaaaaaaaaa", Credential: "ses_bbbbbbbbbbbbbbbbbbbb", Action: "cluster.delete",
		Objects: []string{"cl_cccccccccccccccccccc"}, Client: "192.0.2.7", Outcome: audit.OK, Status: 202,
		TraceID: "4bf92f3577b34da6a3ce929d0e0e4736", Detail: audit.Detail{Fields: []string{"name"}}}
}

func trail(s *store.Store) *audit.Trail { return audit.NewTrail(s, slog.New(slog.DiscardHandler)) }

func fill(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), `insert into audit_log (at, actor, credential, action, objects, client, outcome, status, code, trace_id, detail)
		select $1::timestamptz + i * interval '1 second', 'usr_' || lpad((i % 1000)::text, 20, '0'), '', case i % 2 when 0 then 'cluster.delete' else 'session.open' end,
			array['cl_' || lpad((i % 1000)::text, 20, '0')], '192.0.2.' || i % 250, 'ok', 200, '', lpad(i::text, 32, '0'), '{}' from generate_series(1, $2::int) i`,
		noon, n); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `analyze audit_log`); err != nil {
		t.Fatal(err)
	}
}

func TestAuditLogIsAppendOnly(t *testing.T) {
	s, pool := open(t)
	want := event(noon)
	if err := s.AddEvent(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	want.ID = 1
	const add = `insert into audit_log (id, at, actor, credential, action, objects, client, outcome, status, code, trace_id, detail)
		overriding system value select id, now(), 'x', '', 'x.y', '{}', '', 'ok', 1, '', '', '{}' from audit_log where id = 1 `
	attempts := []string{
		`update audit_log set actor = 'x'`, `update audit_log set actor = 'x' where false`, `delete from audit_log`, `delete from audit_log where id = 1`,
		`truncate audit_log`, `truncate audit_log restart identity cascade`,
		add + `on conflict (id) do update set actor = 'x'`,
		`merge into audit_log a using (select 1) x on true when matched then delete`,
		`with gone as (delete from audit_log returning *) select count(*) from gone`,
	}
	refuses := func(when string) {
		t.Helper()
		for _, attempt := range attempts {
			if _, err := pool.Exec(t.Context(), attempt); err == nil || !strings.Contains(err.Error(), "append-only") {
				t.Errorf("%s: %s: %v", when, attempt, err)
			}
			// A superuser who replays a replica's stream passes ordinary triggers by.
			err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), `set local session_replication_role = replica`); err != nil {
					return err
				}
				_, err := tx.Exec(t.Context(), attempt)
				return err
			})
			if err == nil || !strings.Contains(err.Error(), "append-only") {
				t.Errorf("%s, as a replica: %s: %v", when, attempt, err)
			}
		}
	}
	refuses("new")
	found, err := s.NewestEvents(t.Context(), audit.Filter{}, 0, 10)
	if diff := cmp.Diff([]audit.Event{want}, found); err != nil || diff != "" {
		t.Fatal(err, diff)
	}

	// The runbook's way to archive works, takes what it says, and leaves the table as it was.
	late := event(time.Date(2026, 12, 2, 0, 0, 0, 0, time.UTC))
	early := event(time.Date(2026, 11, 30, 23, 59, 59, 0, time.UTC))
	for _, e := range []audit.Event{late, early} {
		if err := s.AddEvent(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile("../../../docs/runbooks/read-the-audit-log.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(text), "```sql\n")
	block, _, found1 := strings.Cut(block, "```")
	if !found1 {
		t.Fatal("the runbook has no SQL")
	}
	if _, err := pool.Exec(t.Context(), block); err != nil {
		t.Fatal(err)
	}
	if left := count(t, pool, `select count(*) from audit_log`); left != 2 {
		t.Errorf("%d are left", left)
	}
	refuses("archived")
}

func TestAuditSearch(t *testing.T) {
	s, pool := open(t)
	base := event(noon)
	var events []audit.Event
	add := func(change func(*audit.Event)) {
		e := base
		change(&e)
		if err := s.AddEvent(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		e.ID = int64(len(events) + 1)
		events = append(events, e)
	}
	add(func(*audit.Event) {})
	add(func(e *audit.Event) { e.At = noon.Add(time.Hour) })
	add(func(e *audit.Event) { e.Actor, e.Objects = "usr_zzzzzzzzzzzzzzzzzzzz", []string{"tok_x", "cl_y"} })
	add(func(e *audit.Event) {
		e.Action, e.Outcome, e.Code, e.Status = "cluster.create", audit.Refused, "name_taken", 409
	})
	add(func(e *audit.Event) { e.Action, e.Client, e.Objects = "cluster_member.add", "2001:db8::1", []string{} })
	add(func(e *audit.Event) {
		e.TraceID, e.Outcome, e.Detail = "00000000000000000000000000000001", audit.Failed, audit.Detail{}
	})
	for name, c := range map[string]struct {
		f   audit.Filter
		ids []int64 // oldest first
	}{
		"everything":         {audit.Filter{}, []int64{1, 2, 3, 4, 5, 6}},
		"since is within":    {audit.Filter{Since: noon.Add(time.Hour)}, []int64{2}},
		"until is without":   {audit.Filter{Until: noon.Add(time.Hour)}, []int64{1, 3, 4, 5, 6}},
		"actor":              {audit.Filter{Actor: "usr_zzzzzzzzzzzzzzzzzzzz"}, []int64{3}},
		"action":             {audit.Filter{Action: "cluster.create"}, []int64{4}},
		"actions":            {audit.Filter{Action: "cluster."}, []int64{1, 2, 3, 4, 6}},
		"not a pattern":      {audit.Filter{Action: "%."}, nil},
		"nor one character":  {audit.Filter{Action: "cluste_."}, nil},
		"underscore":         {audit.Filter{Action: "cluster_member."}, []int64{5}},
		"one object of two":  {audit.Filter{Object: "cl_y"}, []int64{3}},
		"client":             {audit.Filter{Client: "2001:db8::1"}, []int64{5}},
		"outcome":            {audit.Filter{Outcome: audit.Refused}, []int64{4}},
		"trace":              {audit.Filter{TraceID: "00000000000000000000000000000001"}, []int64{6}},
		"all of them":        {audit.Filter{Action: "cluster.", Outcome: audit.OK, Client: "192.0.2.7", Until: noon.Add(time.Second), Actor: base.Actor}, []int64{1}},
		"injection":          {audit.Filter{Object: "' or true --"}, nil},
		"nothing of the two": {audit.Filter{Action: "cluster.create", Outcome: audit.OK}, nil},
	} {
		want := []audit.Event{}
		for _, id := range c.ids {
			want = append(want, events[id-1])
		}
		oldest, err := s.OldestEvents(t.Context(), c.f, 0, 100, 100)
		if diff := cmp.Diff(want, oldest); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
		newest, err := s.NewestEvents(t.Context(), c.f, 0, 100)
		slices.Reverse(newest)
		if diff := cmp.Diff(want, newest); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}

	// What is asked for an object, a request or a person does not read the whole table.
	fill(t, pool, 50_000)
	for index, where := range map[string]string{
		"audit_log_trace_id": `trace_id = '00000000000000000000000000000777'`, "audit_log_objects": `objects @> array['cl_00000000000000000777']`,
		"audit_log_actor": `actor = 'usr_00000000000000000777'`, "audit_log_client": `client = '2001:db8::1'`,
		"audit_log_action": `action = 'cluster.create'`, "audit_log_not_ok": `outcome = 'failed'`, "audit_log_at": `at < '2026-12-01T11:00:00Z'`,
	} {
		rows, err := pool.Query(t.Context(), `explain select * from audit_log where true and `+where+` order by id desc limit 101`)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || !strings.Contains(strings.Join(plan, "\n"), index) {
			t.Errorf("%s: %v\n%s", where, err, strings.Join(plan, "\n"))
		}
	}
}

// Pages that are read while entries arrive have every older entry once, in order.
func TestAuditPagesAreStable(t *testing.T) {
	s, pool := open(t)
	const before = 1000
	fill(t, pool, before)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if err := s.AddEvent(context.Background(), event(noon)); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	var ids []int64
	for cursor := int64(0); ; {
		found, next, err := trail(s).Search(t.Context(), audit.Filter{}, cursor, 7)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range found {
			ids = append(ids, e.ID)
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	close(stop)
	wg.Wait()
	old := ids[len(ids)-before:]
	for i, id := range old {
		if id != int64(before-i) {
			t.Fatalf("at %d: %d", i, id)
		}
	}
	if !slices.IsSortedFunc(ids, func(a, b int64) int { return int(b - a) }) || len(slices.Compact(slices.Clone(ids))) != len(ids) {
		t.Error("twice, or out of order")
	}
	if n := count(t, pool, `select count(*) from audit_log`); n <= before {
		t.Error("nothing arrived meanwhile")
	}
	// A page that is exactly full is the last one.
	if found, next, err := trail(s).Search(t.Context(), audit.Filter{}, 8, 7); err != nil || len(found) != 7 || next != 0 {
		t.Errorf("%d, %d, %v", len(found), next, err)
	}
}

// 50,000 entries pass through the memory of some hundreds, each once, and none that arrived after the beginning.
func TestAuditExportIsBounded(t *testing.T) {
	s, pool := open(t)
	const all = 50_000
	fill(t, pool, all)
	live := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	begin, next, pages := live(), int64(1), 0
	err := trail(s).Export(t.Context(), audit.Filter{}, func(page []audit.Event) error {
		if pages++; len(page) > 500 {
			return fmt.Errorf("a page of %d", len(page))
		}
		for _, e := range page {
			if e.ID != next {
				return fmt.Errorf("%d instead of %d", e.ID, next)
			}
			next++
		}
		if pages%20 == 1 {
			if err := s.AddEvent(t.Context(), event(noon)); err != nil {
				return err
			}
			if now := live(); now > begin+4<<20 {
				return fmt.Errorf("page %d: %d KiB more than at the beginning", pages, (now-begin)>>10)
			}
		}
		return nil
	})
	if err != nil || next != all+1 {
		t.Errorf("%v; up to %d", err, next-1)
	}
	calls := 0
	if err := trail(s).Export(t.Context(), audit.Filter{Object: "nothing"}, func(page []audit.Event) error { calls++; return nil }); err != nil || calls != 1 {
		t.Errorf("%v, %d calls for nothing", err, calls)
	}
	if text, err := json.Marshal(event(noon)); err != nil || strings.Contains(string(text), "null") {
		t.Errorf("%s %v", text, err)
	}
}
