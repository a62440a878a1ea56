package postgres

import (
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	pkgpostgres "github.com/kubebyon/kubebyon/pkg/postgres"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
)

// seeds are rows as each version's processes wrote them, by the number of the migration after which they are written.
var seeds = map[string]string{
	"00001": `insert into clusters (id, name, vcluster_name, namespace, owner_id, control_plane, control_plane_host, public_access_mode, api_endpoint, status, reason_code, generation, created_at, updated_at)
			values ('cl_a', 'a', 'a', 'a', 'usr_a', 'upstream', '192.0.2.10', 'nodeport', 'https://192.0.2.10:30000', 'ready', '', 3, now(), now()),
				('cl_b', 'b', 'b', 'b', 'usr_a', 'vcluster', 'b.example.com', 'loadbalancer', 'https://b.example.com:443', 'ready', '', 1, now(), now()),
				('cl_c', 'c', 'c', 'c', 'usr_b', 'upstream', 'c.example.com', 'nodeport', '', 'error', 'gave_up', 1, now(), now()),
				('cl_d', 'd', 'd', 'd', 'usr_b', 'upstream', 'd.example.com', 'loadbalancer', '', 'deleting', '', 2, now(), now());
		insert into cluster_events (cluster_id, at, level, code, message, action) select id, now(), 'info', 'created', 'accepted', 'wait' from clusters`,
	"00002": `insert into cluster_members values ('cl_a', 'usr_b', 'editor', 'usr_a', now()), ('cl_d', 'usr_a', 'owner', 'usr_b', now())`,
	"00003": `update clusters set edge_state = 'serving', edge_reason_code = '', former_hosts = '{192.0.2.9,old.example.com}' where id = 'cl_b'`,
	"00004": `update clusters set deletion_protection = true where id = 'cl_a'`,
	"00005": `update cluster_removals set remaining = '[{"kind":"Namespace","name":"d"}]', workers = '[{"name":"w1"}]'`,
}

// Each migration is applied to a database in use, and what it had is there afterwards. A migration that gives a column away, or
// another meaning, has to be named here.
func TestMigrationsKeepWhatIsThere(t *testing.T) {
	pool, err := pkgpostgres.Open(t.Context(), pgtest.New(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	all, err := fs.Glob(files, "migrations/*.sql")
	if err != nil || len(all) < 7 {
		t.Fatal(all, err)
	}
	slices.Sort(all)
	seen, before := fstest.MapFS{}, map[string][]map[string]any{}
	for _, path := range all {
		text, err := fs.ReadFile(files, path)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(path, "migrations/")
		seen[name] = &fstest.MapFile{Data: text}
		if err := pkgpostgres.Migrate(t.Context(), pool, "cluster", seen); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		now := everything(t, pool)
		for table, rows := range before {
			if len(now[table]) != len(rows) {
				t.Errorf("%s: %s had %d rows and has %d", name, table, len(rows), len(now[table]))
				continue
			}
			for i, row := range rows {
				for column, was := range row {
					if is, there := now[table][i][column]; !there || fmt.Sprint(is) != fmt.Sprint(was) {
						t.Errorf("%s: %s of %s was %v and is %v", name, column, table, was, is)
					}
				}
			}
		}
		if _, err := pool.Exec(t.Context(), seeds[name[:5]]); err != nil {
			t.Fatalf("rows of %s: %v", name, err)
		}
		before = everything(t, pool)
	}
	for _, table := range []string{"clusters", "cluster_events", "cluster_members", "cluster_removals"} {
		if len(before[table]) == 0 {
			t.Errorf("%s was migrated empty", table)
		}
	}
	// The newest process reads them all.
	if err := Migrate(t.Context(), pool, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	s := New(pool, nil, nil)
	for id, name := range map[string]string{"cl_a": "a", "cl_b": "b", "cl_c": "c", "cl_d": "d"} {
		c, err := s.Find(t.Context(), id, "usr_b")
		if err != nil || c.Name != name {
			t.Errorf("%+v, %v", c, err)
		}
		if events, err := s.Events(t.Context(), id); err != nil || len(events) != 1 || events[0].Message != "accepted" || events[0].Action != "wait" {
			t.Errorf("%+v, %v", events, err)
		}
	}
	if c, err := s.Find(t.Context(), "cl_a", "usr_b"); err != nil || c.Membership != "editor" || !c.DeletionProtection {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := s.Find(t.Context(), "cl_b", ""); err != nil || c.Edge.State != "serving" || len(c.FormerHosts) != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := s.Find(t.Context(), "cl_d", ""); err != nil || c.Removal == nil || c.Removal.Deadline.IsZero() || len(c.Removal.Remaining) != 1 || len(c.Removal.Workers) != 1 {
		t.Errorf("%+v, %v", c.Removal, err)
	}
}

// everything is each table's rows but for goose's own, in an order that a migration does not change.
func everything(t *testing.T, pool *pgxpool.Pool) map[string][]map[string]any {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT table_name::text FROM information_schema.tables WHERE table_schema = current_schema() AND table_name NOT LIKE 'goose%'`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]map[string]any{}
	for _, table := range tables {
		rows, err := pool.Query(t.Context(), `SELECT to_jsonb(x) FROM `+pgx.Identifier{table}.Sanitize()+` x`)
		if err != nil {
			t.Fatal(err)
		}
		if out[table], err = pgx.CollectRows(rows, pgx.RowTo[map[string]any]); err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(out[table], func(a, b map[string]any) int { return strings.Compare(key(a), key(b)) })
	}
	return out
}

// key is what tells a row apart, in every table of this service.
func key(row map[string]any) string {
	var out []string
	for _, column := range []string{"cluster_id", "id", "user_id"} {
		out = append(out, fmt.Sprint(row[column]))
	}
	return strings.Join(out, " ")
}

// Every file has a number of its own, in steps of one.
func TestMigrationsAreNumbered(t *testing.T) {
	all, err := fs.Glob(files, "migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	numbers := map[string]string{}
	for _, path := range all {
		numbers[strings.TrimPrefix(path, "migrations/")[:5]] = path
	}
	for i, number := range slices.Sorted(maps.Keys(numbers)) {
		if number != fmt.Sprintf("%05d", i+1) || len(numbers) != len(all) {
			t.Errorf("the files are %v", all)
		}
	}
}
