package app

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/rpc"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
)

// published asks as the edge service does: with no principal.
func published(t *testing.T, conn *nats.Conn, after string) clusterv1.PublishedResponse {
	t.Helper()
	page, err := rpc.Client(conn, clusterv1.Published)(t.Context(), clusterv1.PublishedRequest{After: after})
	if err != nil {
		t.Fatal(err)
	}
	return page
}

func report(t *testing.T, conn *nats.Conn, reports ...clusterv1.EdgeReport) error {
	t.Helper()
	return second(rpc.Client(conn, clusterv1.ReportEdge)(t.Context(), clusterv1.ReportEdgeRequest{Reports: reports}))
}

func publish(t *testing.T, conn *nats.Conn, name, host string) clusterv1.Cluster {
	t.Helper()
	c, err := ask(t, conn, alice, clusterv1.Create, clusterv1.CreateRequest{Name: name, ControlPlaneHost: host, PublicAccessMode: clusterv1.LoadBalancer})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func get(t *testing.T, conn *nats.Conn, id string) clusterv1.Cluster {
	t.Helper()
	c, err := ask(t, conn, alice, clusterv1.Get, clusterv1.GetRequest{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// edgeEvents is the edge's part of a timeline.
func edgeEvents(t *testing.T, conn *nats.Conn, id string) []string {
	t.Helper()
	events, err := ask(t, conn, alice, clusterv1.Events, clusterv1.EventsRequest{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range events.Events {
		if strings.HasPrefix(e.Code, "edge_") {
			out = append(out, fmt.Sprintf("%s %s: %s [%s]", e.Level, e.Code, e.Message, e.Action))
		}
	}
	return out
}

func TestPublishedPages(t *testing.T) {
	conn, pool := startService(t)
	if page := published(t, conn, ""); page.Clusters == nil || len(page.Clusters) != 0 || page.More {
		t.Errorf("of nothing: %+v", page)
	}
	newCluster(t, conn, alice, "by-port")
	// Digits and letters, so that an order other than that of bytes shows; one host is of the time when an address was let through.
	if _, err := pool.Exec(t.Context(), `INSERT INTO clusters (id, name, vcluster_name, namespace, owner_id, control_plane, control_plane_host, public_access_mode, status, created_at, updated_at)
		SELECT 'cl_' || left(md5(i::text), 20), 'n' || i, 'v' || i, 's' || i, 'usr_a', 'upstream', CASE i WHEN 1 THEN '10.0.0.7' ELSE 'h' || i || '.example.com' END,
			'loadbalancer', CASE i WHEN 2 THEN 'deleting' ELSE 'ready' END, now(), now() FROM generate_series(1, 2001) i`); err != nil {
		t.Fatal(err)
	}
	var all []clusterv1.PublishedCluster
	var sizes []int
	for after, more := "", true; more; {
		page := published(t, conn, after)
		all, more = append(all, page.Clusters...), page.More
		sizes = append(sizes, len(page.Clusters))
		after = all[len(all)-1].ID
	}
	if !slices.Equal(sizes, []int{1000, 1000, 1}) {
		t.Errorf("pages of %v", sizes)
	}
	if !slices.IsSortedFunc(all, func(a, b clusterv1.PublishedCluster) int { return strings.Compare(a.ID, b.ID) }) {
		t.Error("the pages are in no order of ids")
	}
	seen := map[string]clusterv1.PublishedCluster{}
	for _, c := range all {
		seen[c.VClusterName] = c
	}
	if len(seen) != 2001 {
		t.Errorf("%d clusters on %d places", len(seen), len(all))
	}
	want := clusterv1.PublishedCluster{ID: seen["v1"].ID, Host: "10.0.0.7", VClusterName: "v1", Namespace: "s1", Status: clusterv1.Ready}
	if seen["v1"] != want || seen["v2"].Status != clusterv1.Deleting {
		t.Errorf("%+v, %+v", seen["v1"], seen["v2"])
	}
	for _, after := range []string{"cl_", "' OR true --", "cl_\x00", strings.Repeat("x", 10000)} {
		if _, err := rpc.Client(conn, clusterv1.Published)(t.Context(), clusterv1.PublishedRequest{After: after}); codeOf(err) != "after_invalid" {
			t.Errorf("after %.20q: %v", after, err)
		}
	}
}

func TestEdgeOfACluster(t *testing.T) {
	conn, pool := startService(t)
	byPort := newCluster(t, conn, alice, "by-port")
	c := publish(t, conn, "demo", "Demo.example.com.")
	if byPort.Edge != nil || get(t, conn, byPort.ID).Edge != nil {
		t.Errorf("an edge of a cluster without one: %+v", byPort.Edge)
	}
	notAsked := func(c clusterv1.Cluster) {
		t.Helper()
		if c.Edge == nil || c.Edge.State != clusterv1.EdgePending || c.Edge.Reason == nil || c.Edge.Reason.Code != "edge_not_asked" || c.Edge.Reason.Message == "" ||
			c.Edge.Since.Before(c.CreatedAt) || time.Since(c.Edge.Since) > time.Minute {
			t.Errorf("before a report: %+v", c.Edge)
		}
	}
	notAsked(c)
	// Writes of the work name the generation before: nothing but this test moves the rows from here on.
	// It is an hour old, so that what follows lies between that and now.
	if _, err := pool.Exec(t.Context(), `UPDATE clusters SET status = 'ready', generation = 7, edge_since = edge_since - interval '1 hour'`); err != nil {
		t.Fatal(err)
	}
	before := get(t, conn, c.ID)
	at := time.Now().UTC().Truncate(time.Microsecond).Add(-time.Minute)
	say := func(state clusterv1.EdgeState, since time.Time, reason *clusterv1.Reason) {
		t.Helper()
		if err := report(t, conn, clusterv1.EdgeReport{ID: c.ID, Host: "demo.example.com", Edge: clusterv1.Edge{State: state, Reason: reason, Since: since}}); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(what string, want clusterv1.Edge) {
		t.Helper()
		got := get(t, conn, c.ID)
		if diff := cmp.Diff(&want, got.Edge); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
		got.Edge = before.Edge
		if diff := cmp.Diff(before, got); diff != "" {
			t.Errorf("%s moved more than the edge: %s", what, diff)
		}
		list, err := ask(t, conn, alice, clusterv1.List, clusterv1.ListRequest{})
		if err != nil || len(list.Clusters) != 2 || list.Clusters[0].Edge == nil || list.Clusters[1].Edge != nil {
			t.Errorf("%s: the list says %+v, %v", what, list, err)
		}
	}
	noRoute := clusterv1.Reason{Code: "cluster_not_ready", Message: "the cluster is being made", Action: "wait"}
	wrong := clusterv1.Reason{Code: "probe_failed", Message: "no handshake", Action: "look at it"}

	// Pending as before: not a change of the state.
	say(clusterv1.EdgePending, at, &noRoute)
	holds("pending", clusterv1.Edge{State: clusterv1.EdgePending, Reason: &noRoute, Since: before.Edge.Since})
	say(clusterv1.EdgeServing, at, nil)
	holds("serving", clusterv1.Edge{State: clusterv1.EdgeServing, Since: at})
	say(clusterv1.EdgeServing, at.Add(5*time.Millisecond), nil)
	holds("serving still", clusterv1.Edge{State: clusterv1.EdgeServing, Since: at})
	say(clusterv1.EdgeFailed, at.Add(10*time.Millisecond), &wrong)
	holds("failed", clusterv1.Edge{State: clusterv1.EdgeFailed, Reason: &wrong, Since: at.Add(10 * time.Millisecond)})
	other := clusterv1.Reason{Code: "certificate_wrong", Message: "another one's certificate"}
	say(clusterv1.EdgeFailed, at.Add(20*time.Millisecond), &other)
	holds("failed otherwise", clusterv1.Edge{State: clusterv1.EdgeFailed, Reason: &other, Since: at.Add(10 * time.Millisecond)})
	// A time before that of the last state is its clock's fault.
	say(clusterv1.EdgeSkipped, at.Add(-time.Hour), &noRoute)
	holds("skipped", clusterv1.Edge{State: clusterv1.EdgeSkipped, Reason: &noRoute, Since: at.Add(10 * time.Millisecond)})
	say(clusterv1.EdgePending, at.Add(time.Hour), &noRoute)
	if e := get(t, conn, c.ID).Edge; e.State != clusterv1.EdgePending || e.Since.After(time.Now()) {
		t.Errorf("of a clock that runs ahead: %+v", e)
	}
	want := []string{
		"info edge_serving: the domain demo.example.com leads to the cluster []", "error edge_failed: no handshake [look at it]",
		"warning edge_skipped: the cluster is being made [wait]", "info edge_pending: the cluster is being made [wait]",
	}
	if diff := cmp.Diff(want, edgeEvents(t, conn, c.ID)); diff != "" {
		t.Error(diff)
	}

	// What is published otherwise now, or not at all, is not what a report is about.
	serving := clusterv1.Edge{State: clusterv1.EdgeServing, Since: time.Now()}
	if err := report(t, conn, clusterv1.EdgeReport{ID: c.ID, Host: "other.example.com", Edge: serving}, clusterv1.EdgeReport{ID: byPort.ID, Host: byPort.ControlPlaneHost, Edge: serving},
		clusterv1.EdgeReport{ID: "cl_none", Host: "demo.example.com", Edge: serving}, clusterv1.EdgeReport{ID: "' OR true --", Edge: serving}); err != nil {
		t.Fatal(err)
	}
	if got := get(t, conn, c.ID); got.Edge.State != clusterv1.EdgePending {
		t.Errorf("by a report on another host: %+v", got.Edge)
	}
	var served int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM clusters WHERE edge_state = 'serving'`).Scan(&served); err != nil || served != 0 || len(edgeEvents(t, conn, c.ID)) != 4 {
		t.Errorf("%d rows, %v, %v", served, err, edgeEvents(t, conn, c.ID))
	}

	// Of two about one cluster the later one counts.
	failed := clusterv1.Edge{State: clusterv1.EdgeFailed, Reason: &wrong, Since: time.Now()}
	if err := report(t, conn, clusterv1.EdgeReport{ID: c.ID, Host: "demo.example.com", Edge: failed}, clusterv1.EdgeReport{ID: c.ID, Host: "demo.example.com", Edge: serving}); err != nil {
		t.Fatal(err)
	}
	if got := get(t, conn, c.ID); got.Edge.State != clusterv1.EdgeServing || len(edgeEvents(t, conn, c.ID)) != 4 {
		t.Errorf("of two: %+v, %v", got.Edge, edgeEvents(t, conn, c.ID))
	}

	// A new name changes nothing about it; a new host or mode begins anew.
	name, host, byNode, byEdge := "renamed", "new.example.com", clusterv1.NodePort, clusterv1.LoadBalancer
	update := func(req clusterv1.UpdateRequest) clusterv1.Cluster {
		t.Helper()
		req.ID = c.ID
		got, err := ask(t, conn, alice, clusterv1.Update, req)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := update(clusterv1.UpdateRequest{Name: &name}); got.Edge.State != clusterv1.EdgeServing {
		t.Errorf("renamed: %+v", got.Edge)
	}
	notAsked(update(clusterv1.UpdateRequest{ControlPlaneHost: &host}))
	if err := report(t, conn, clusterv1.EdgeReport{ID: c.ID, Host: "demo.example.com", Edge: serving}); err != nil {
		t.Fatal(err)
	}
	notAsked(get(t, conn, c.ID))
	if err := report(t, conn, clusterv1.EdgeReport{ID: c.ID, Host: host, Edge: serving}); err != nil {
		t.Fatal(err)
	}
	if got := get(t, conn, c.ID); got.Edge.State != clusterv1.EdgeServing {
		t.Errorf("under the new host: %+v", got.Edge)
	}
	if got := update(clusterv1.UpdateRequest{PublicAccessMode: &byNode}); got.Edge != nil {
		t.Errorf("by port now: %+v", got.Edge)
	}
	notAsked(update(clusterv1.UpdateRequest{PublicAccessMode: &byEdge}))
}

func TestReportsOfNoSense(t *testing.T) {
	conn, _ := startService(t)
	c := publish(t, conn, "demo", "demo.example.com")
	about := func(state clusterv1.EdgeState, reason *clusterv1.Reason) clusterv1.EdgeReport {
		return clusterv1.EdgeReport{ID: c.ID, Host: c.ControlPlaneHost, Edge: clusterv1.Edge{State: state, Reason: reason, Since: time.Now()}}
	}
	why := func(code, message string) *clusterv1.Reason { return &clusterv1.Reason{Code: code, Message: message} }
	for what, r := range map[string]clusterv1.EdgeReport{
		"no state":             about("", nil),
		"another state":        about("up", why("a", "b")),
		"serving for a reason": about(clusterv1.EdgeServing, why("a", "b")),
		"failed without one":   about(clusterv1.EdgeFailed, nil),
		"no code":              about(clusterv1.EdgePending, why("", "b")),
		"a code of words":      about(clusterv1.EdgePending, why("two words", "b")),
		"a long code":          about(clusterv1.EdgePending, why(strings.Repeat("a", 65), "b")),
		"no message":           about(clusterv1.EdgeSkipped, why("a", " \n ")),
		"a host with a NUL":    {ID: c.ID, Host: "a\x00b", Edge: clusterv1.Edge{State: clusterv1.EdgeServing}},
		"an id with a NUL":     {ID: "a\x00b", Host: "b", Edge: clusterv1.Edge{State: clusterv1.EdgeServing}},
	} {
		if err := report(t, conn, about(clusterv1.EdgeServing, nil), r); codeOf(err) != "report_invalid" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := report(t, conn, slices.Repeat([]clusterv1.EdgeReport{about(clusterv1.EdgeServing, nil)}, 1001)...); codeOf(err) != "too_many_reports" {
		t.Error(err)
	}
	if got := get(t, conn, c.ID); got.Edge.Reason == nil || got.Edge.Reason.Code != cluster.EdgeNotAsked || len(edgeEvents(t, conn, c.ID)) != 0 {
		t.Errorf("a refused request left %+v, %v", got.Edge, edgeEvents(t, conn, c.ID))
	}
	if err := report(t, conn); err != nil {
		t.Errorf("nothing to report: %v", err)
	}
	// What is long is cut between characters, and what is several lines is one.
	long := clusterv1.Reason{Code: "haproxy_refused", Message: "a\r\n\x00b\u202e" + strings.Repeat("é", 2000), Action: strings.Repeat("x", 20000)}
	if err := report(t, conn, about(clusterv1.EdgeFailed, &long)); err != nil {
		t.Fatal(err)
	}
	got := get(t, conn, c.ID).Edge.Reason
	if len(got.Message) > 1000 || len(got.Message) < 990 || !strings.HasPrefix(got.Message, "a b é") || !strings.HasSuffix(got.Message, "é…") || len(got.Action) != 500 {
		t.Errorf("%d bytes %q, %d bytes", len(got.Message), got.Message, len(got.Action))
	}
}

// A batch as large as it may be, of rows that change and rows that do not, by several replicas at once: each row ends as
// one of them said, each change of a state is told, and nothing waits for ever.
func TestReportsAtOnce(t *testing.T) {
	conn, pool := startService(t)
	if _, err := pool.Exec(t.Context(), `INSERT INTO clusters (id, name, vcluster_name, namespace, owner_id, control_plane, control_plane_host, public_access_mode, status, created_at, updated_at)
		SELECT 'cl_' || left(md5(i::text), 20), 'n' || i, 'v' || i, 's' || i, 'usr_a', 'upstream', 'h' || i || '.example.com', 'loadbalancer', 'ready', now(), now() FROM generate_series(1, 1000) i`); err != nil {
		t.Fatal(err)
	}
	page := published(t, conn, "")
	var all sync.WaitGroup
	for i := range 4 {
		reports := make([]clusterv1.EdgeReport, 0, 1000)
		for _, c := range page.Clusters {
			r := clusterv1.EdgeReport{ID: c.ID, Host: c.Host, Edge: clusterv1.Edge{State: clusterv1.EdgeServing, Since: time.Now()}}
			if i%2 == 1 {
				r.State, r.Reason = clusterv1.EdgeFailed, &clusterv1.Reason{Code: "probe_failed", Message: "no handshake"}
			}
			reports = append(reports, r)
		}
		if i > 1 {
			slices.Reverse(reports)
		}
		all.Go(func() {
			if err := report(t, conn, reports...); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	// The last event of each says what its row says.
	var rows, agree int
	if err := pool.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE 'edge_' || c.edge_state = (SELECT code FROM cluster_events e WHERE e.cluster_id = c.id ORDER BY e.id DESC LIMIT 1))
		FROM clusters c WHERE edge_state IN ('serving', 'failed')`).Scan(&rows, &agree); err != nil || rows != 1000 || agree != 1000 {
		t.Errorf("%d rows reported, %d as their timelines say, %v", rows, agree, err)
	}
}

// A route that comes and goes fills no timeline.
func TestAFlappingRouteIsToldOnce(t *testing.T) {
	conn, pool := startService(t)
	c := publish(t, conn, "demo", "demo.example.com")
	if _, err := pool.Exec(t.Context(), `UPDATE clusters SET status = 'ready', generation = 7`); err != nil {
		t.Fatal(err)
	}
	wrong := clusterv1.Reason{Code: "probe_failed", Message: "no handshake", Action: "look at it"}
	flap := func(times int) {
		t.Helper()
		for range times {
			for _, e := range []clusterv1.Edge{{State: clusterv1.EdgeServing}, {State: clusterv1.EdgeFailed, Reason: &wrong}} {
				if err := report(t, conn, clusterv1.EdgeReport{ID: c.ID, Host: "demo.example.com", Edge: e}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	told := func(want ...string) {
		t.Helper()
		since := regexp.MustCompile(`since [0-9TZ:-]+`)
		got := edgeEvents(t, conn, c.ID)
		for i := range got {
			got[i] = since.ReplaceAllString(got[i], "since then")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	const good, bad = "info edge_serving: the domain demo.example.com leads to the cluster", "error edge_failed: no handshake"
	flap(1)
	told(good+" []", bad+" [look at it]")
	flap(30)
	told(good+" (31 times since then) []", bad+" (31 times since then) [look at it]")
	var first, last time.Time
	if err := pool.QueryRow(t.Context(), `SELECT first_at, at FROM cluster_events WHERE code = 'edge_failed'`).Scan(&first, &last); err != nil || !first.Before(last) {
		t.Errorf("first at %s, last at %s, %v", first, last, err)
	}
	// What comes after something else is told after that, and what comes much later is told anew.
	if _, err := protect(t, conn, alice, c.ID, true); err != nil {
		t.Fatal(err)
	}
	flap(2)
	told(good+" (31 times since then) []", bad+" (31 times since then) [look at it]", good+" (2 times since then) []", bad+" (2 times since then) [look at it]")
	if _, err := pool.Exec(t.Context(), `UPDATE cluster_events SET at = at - interval '11 minutes', first_at = first_at - interval '11 minutes'`); err != nil {
		t.Fatal(err)
	}
	flap(1)
	told(good+" (31 times since then) []", bad+" (31 times since then) [look at it]", good+" (2 times since then) []", bad+" (2 times since then) [look at it]",
		good+" []", bad+" [look at it]")
}

func TestEdgeEventsPushOutTheOldest(t *testing.T) {
	conn, pool := startService(t)
	c := publish(t, conn, "demo", "demo.example.com")
	// The work's own events, which name the generation before, end here.
	if _, err := pool.Exec(t.Context(), `UPDATE clusters SET status = 'ready', generation = 7`); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `INSERT INTO cluster_events (cluster_id, at, level, code, message)
		SELECT $1, now(), 'info', 'n', i::text FROM generate_series(1, 600) i`, c.ID); err != nil {
		t.Fatal(err)
	}
	if err := report(t, conn, clusterv1.EdgeReport{ID: c.ID, Host: "demo.example.com", Edge: clusterv1.Edge{State: clusterv1.EdgeServing}}); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM cluster_events WHERE cluster_id = $1`, c.ID).Scan(&n); err != nil || n != 500 || len(edgeEvents(t, conn, c.ID)) != 1 {
		t.Errorf("%d events are kept, %v", n, err)
	}
}

// Each commit that matters is told once it is there to be read, and nothing else is.
func TestChangesAreTold(t *testing.T) {
	pool, s := openStore(t)
	var told []string
	store := cluster.Announce(s, func(e clusterv1.ChangedEvent) {
		var n int
		if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM clusters WHERE id = $1`, e.ID).Scan(&n); err != nil {
			t.Error(err)
		}
		told = append(told, fmt.Sprintf("%s %d", e.ID, n))
	})
	expect := func(what string, err error, want ...string) {
		t.Helper()
		if err != nil || !slices.Equal(told, want) {
			t.Errorf("%s: told %q, want %q; %v", what, told, want, err)
		}
		told = nil
	}
	ctx, c := t.Context(), row(1, "usr_a")
	there, gone := c.ID+" 1", c.ID+" 0"
	expect("create", second(store.Create(ctx, c, happened(cluster.EventCreated))), there)
	if err := second(store.Create(ctx, c, happened(cluster.EventCreated))); err == nil || told != nil {
		t.Errorf("a refused one: %v, %v", told, err)
	}
	change := func(ch cluster.Change) func(cluster.Cluster) (cluster.Change, clusterv1.Event, error) {
		return func(cluster.Cluster) (cluster.Change, clusterv1.Event, error) {
			return ch, happened(cluster.EventUpdated), nil
		}
	}
	name := "other"
	expect("update", second(store.Update(ctx, c.ID, "usr_a", change(cluster.Change{Name: &name}))), there)
	expect("an update of nothing", second(store.Update(ctx, c.ID, "usr_a", change(cluster.Change{}))))
	begun, _, err := store.Begin(ctx, c.ID)
	expect("begin", err)
	expect("report", second(store.Report(ctx, begun, nil, happened(cluster.EventWaiting))))
	expect("finish", second(store.Finish(ctx, begun, cluster.Outcome{Status: clusterv1.Ready}, happened(cluster.EventReady))), there)
	expect("finish of what is finished", second(store.Finish(ctx, begun, cluster.Outcome{Status: clusterv1.Ready}, happened(cluster.EventReady))))
	remove := func() error {
		return second(store.Delete(ctx, c.ID, "usr_a", clusterv1.Removal{}, func(cluster.Cluster) error { return nil }, happened(cluster.EventDeleteRequested)))
	}
	expect("delete", remove(), there)
	expect("delete again", remove())
	expect("remove", store.Remove(ctx, c.ID), gone)
}

// What is told reaches whoever listens on NATS, and what cannot be told fails nothing.
func TestChangesReachListeners(t *testing.T) {
	conn, _ := startService(t)
	ids := make(chan string, 100)
	stop, err := rpc.Subscribe(conn, clusterv1.Changed, quiet(), func(e clusterv1.ChangedEvent) { ids <- e.ID })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	await := func(want string) {
		t.Helper()
		select {
		case id := <-ids:
			if id != want {
				t.Errorf("told %q, want %q", id, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s was not told", want)
		}
	}
	c := publish(t, conn, "demo", "demo.example.com")
	await(c.ID)
	host := "new.example.com"
	if _, err := ask(t, conn, alice, clusterv1.Update, clusterv1.UpdateRequest{ID: c.ID, ControlPlaneHost: &host}); err != nil {
		t.Fatal(err)
	}
	await(c.ID)

	pool, s := openStore(t)
	away := dial(t, conn.ConnectedUrl())
	away.Close()
	store := cluster.Announce(s, rpc.Publish(away, clusterv1.Changed, quiet()))
	made, err := store.Create(t.Context(), row(1, "usr_a"), happened(cluster.EventCreated))
	if err != nil || jobs(t, pool) != 1 {
		t.Errorf("created without NATS: %+v, %v", made, err)
	}
}

// The former hosts, the newest first, without the one that it has.
func TestFormerHosts(t *testing.T) {
	_, s := openStore(t)
	c := create(t, s, row(1, "usr_a"))
	moves := func(host string) []string {
		t.Helper()
		_, err := s.Update(t.Context(), c.ID, "usr_a", func(cluster.Cluster) (cluster.Change, clusterv1.Event, error) {
			return cluster.Change{ControlPlaneHost: &host, Work: true}, happened(cluster.EventUpdated), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := s.Begin(t.Context(), c.ID)
		if err != nil {
			t.Fatal(err)
		}
		return got.ServerNames()
	}
	if diff := cmp.Diff([]string{"k8s.example.com"}, c.ServerNames()); diff != "" {
		t.Error(diff)
	}
	for i, step := range []struct {
		to   string
		want []string
	}{
		{"a", []string{"a", "k8s.example.com"}},
		{"a", []string{"a", "k8s.example.com"}},
		{"b", []string{"b", "a", "k8s.example.com"}},
		{"k8s.example.com", []string{"k8s.example.com", "b", "a"}},
		{"a", []string{"a", "k8s.example.com", "b"}},
	} {
		if diff := cmp.Diff(step.want, moves(step.to)); diff != "" {
			t.Errorf("step %d: %s", i, diff)
		}
	}
	for i := range 9 {
		moves(fmt.Sprintf("h%d", i))
	}
	if diff := cmp.Diff([]string{"h9", "h8", "h7", "h6", "h5", "h4", "h3", "h2", "h1"}, moves("h9")); diff != "" {
		t.Error(diff)
	}
	mode := clusterv1.LoadBalancer
	if _, err := s.Update(t.Context(), c.ID, "usr_a", func(cluster.Cluster) (cluster.Change, clusterv1.Event, error) {
		return cluster.Change{PublicAccessMode: &mode, Work: true}, happened(cluster.EventUpdated), nil
	}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Find(t.Context(), c.ID, ""); err != nil || len(got.FormerHosts) != 8 || got.ControlPlaneHost != "h9" {
		t.Errorf("with a change of the mode: %v, %v", got.FormerHosts, err)
	}
}
