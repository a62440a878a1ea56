package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	pkgpostgres "github.com/kubebyon/kubebyon/pkg/postgres"
	"github.com/kubebyon/kubebyon/pkg/test/pgtest"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
	"github.com/kubebyon/kubebyon/services/cluster/internal/postgres"
	"github.com/kubebyon/kubebyon/services/cluster/internal/queue"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pkgpostgres.Open(t.Context(), pgtest.New(t), quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func openStore(t *testing.T) (*pgxpool.Pool, *postgres.Store) {
	t.Helper()
	pool := database(t)
	if err := postgres.Migrate(t.Context(), pool, quiet()); err != nil {
		t.Fatal(err)
	}
	inserter, err := queue.NewInserter(pool, quiet())
	if err != nil {
		t.Fatal(err)
	}
	return pool, postgres.New(pool, inserter, time.Now)
}

func row(n int, owner string) cluster.Cluster {
	now := time.Now().UTC().Truncate(time.Microsecond)
	name := fmt.Sprintf("c%d", n)
	return cluster.Cluster{Generation: 1, Cluster: clusterv1.Cluster{
		ID: "cl_" + rand20(), Name: name, VClusterName: name, Namespace: name + "-" + owner, OwnerID: owner, ControlPlane: clusterv1.Upstream,
		ControlPlaneHost: "k8s.example.com", PublicAccessMode: clusterv1.NodePort, Status: clusterv1.Provisioning, CreatedAt: now, UpdatedAt: now,
	}}
}

func happened(code string) clusterv1.Event {
	return clusterv1.Event{At: time.Now().UTC(), Level: clusterv1.Info, Code: code, Message: "it happened"}
}

func create(t *testing.T, s *postgres.Store, c cluster.Cluster) cluster.Cluster {
	t.Helper()
	made, err := s.Create(t.Context(), c, happened(cluster.EventCreated))
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func jobs(t *testing.T, pool *pgxpool.Pool) int {
	t.Helper()
	var n int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM river_job").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestReplicasMigrateAtOnce(t *testing.T) {
	pool := database(t)
	errs := make([]error, 4)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = postgres.Migrate(t.Context(), pool, quiet()) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if jobs(t, pool) != 0 {
		t.Error("a fresh queue has jobs")
	}
}

func TestStoreConflicts(t *testing.T) {
	pool, s := openStore(t)
	first := row(1, "usr_a")
	first.PublicAccessMode = clusterv1.LoadBalancer
	create(t, s, first)
	for _, c := range []struct {
		code   string
		change func(*cluster.Cluster)
	}{
		{"cluster_name_taken", func(c *cluster.Cluster) { c.Name, c.VClusterName = "c1", "other" }},
		{"cluster_name_taken", func(c *cluster.Cluster) { c.Name, c.VClusterName = "C 1", "c1" }},
		{"namespace_in_use", func(c *cluster.Cluster) { c.Namespace = first.Namespace; c.OwnerID = "usr_b" }},
		{"control_plane_host_taken", func(c *cluster.Cluster) { c.OwnerID, c.PublicAccessMode = "usr_b", clusterv1.LoadBalancer }},
	} {
		next := row(2, "usr_a")
		c.change(&next)
		_, err := s.Create(t.Context(), next, happened(cluster.EventCreated))
		if f := fault.From(err); err == nil || f.Code != c.code || f.Kind != fault.Conflict {
			t.Errorf("want %s: %v", c.code, err)
		}
	}
	same := row(1, "usr_b") // another owner's cluster of the same name
	create(t, s, same)
	if n := jobs(t, pool); n != 2 {
		t.Errorf("%d jobs for 2 clusters: a refused one left its job", n)
	}
	if list, err := s.List(t.Context(), "usr_a", false, nil); err != nil || len(list) != 1 {
		t.Errorf("%d clusters of usr_a, %v", len(list), err)
	}
	if list, err := s.List(t.Context(), "", true, nil); err != nil || len(list) != 2 {
		t.Errorf("%d clusters, %v", len(list), err)
	}
	if list, err := s.List(t.Context(), "", true, []string{same.ID}); err != nil || len(list) != 1 || list[0].ID != same.ID {
		t.Errorf("of the one that was asked for: %d clusters, %v", len(list), err)
	}
}

func TestStoreKeepsTheNewestEvents(t *testing.T) {
	pool, s := openStore(t)
	c := create(t, s, row(1, "usr_a"))
	if _, err := pool.Exec(t.Context(), `INSERT INTO cluster_events (cluster_id, at, level, code, message)
		SELECT $1, now(), 'info', 'n', i::text FROM generate_series(1, 498) i`, c.ID); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if current, err := s.Report(t.Context(), c, nil, happened(fmt.Sprintf("last%d", i))); err != nil || !current {
			t.Fatal(current, err)
		}
	}
	events, err := s.Events(t.Context(), c.ID)
	if err != nil || len(events) != 500 || events[0].Message != "2" || events[499].Code != "last2" {
		t.Errorf("%d events, first %+v, %v", len(events), events[0], err)
	}
}

func TestStoreForgetsStaleWork(t *testing.T) {
	_, s := openStore(t)
	c := create(t, s, row(1, "usr_a"))
	begun, found, err := s.Begin(t.Context(), c.ID)
	if err != nil || !found || begun.Attempts != 1 {
		t.Fatal(begun, found, err)
	}
	if _, err := s.Delete(t.Context(), c.ID, "usr_a", clusterv1.Removal{}, func(cluster.Cluster) error { return nil }, happened(cluster.EventDeleteRequested)); err != nil {
		t.Fatal(err)
	}
	if current, err := s.Finish(t.Context(), begun, cluster.Outcome{Status: clusterv1.Ready}, happened(cluster.EventReady)); err != nil || current {
		t.Errorf("a cluster that is being deleted became ready: %v, %v", current, err)
	}
	if current, err := s.Current(t.Context(), begun); err != nil || current {
		t.Errorf("the deleted one is current: %v, %v", current, err)
	}
	if err := s.Remove(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Find(t.Context(), c.ID, ""); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	if _, found, err := s.Begin(t.Context(), c.ID); found || err != nil {
		t.Error(found, err)
	}
}

func startQueue(t *testing.T, pool *pgxpool.Pool, s *postgres.Store, work queue.Work) *queue.Queue {
	t.Helper()
	q, err := queue.New(pool, postgres.NewLocker(pool), s, work, 5, time.Minute, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	stopped := false
	t.Cleanup(func() {
		if !stopped {
			stopped = true
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := q.Stop(ctx); err != nil {
				t.Error(err)
			}
		}
	})
	return q
}

func TestQueueWakesAtOnceAndWorksOnOneClusterOnce(t *testing.T) {
	pool, s := openStore(t)
	var working, most, runs atomic.Int32
	began := make(chan time.Time, 10)
	work := func(ctx context.Context, id string) error {
		began <- time.Now()
		if n := working.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer working.Add(-1)
		runs.Add(1)
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
		c, err := s.Find(ctx, id, "")
		if err != nil {
			return err
		}
		_, err = s.Finish(ctx, c, cluster.Outcome{Status: clusterv1.Ready}, happened(cluster.EventReady))
		return err
	}
	startQueue(t, pool, s, work)
	startQueue(t, pool, s, work) // a second replica
	time.Sleep(300 * time.Millisecond)
	sent := time.Now()
	c := create(t, s, row(1, "usr_a"))
	for range 3 {
		if err := s.Enqueue(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
	}
	if took := (<-began).Sub(sent); took > 500*time.Millisecond {
		t.Errorf("the work began after %s", took)
	}
	for range 3 { // the other orders run after it, one at a time
		<-began
	}
	if most.Load() != 1 {
		t.Errorf("%d works on one cluster at once", most.Load())
	}
}

func TestQueueTakesUpWhatAKilledProcessLeft(t *testing.T) {
	pool, s := openStore(t)
	c := create(t, s, row(1, "usr_a"))
	// What kill -9 leaves: a job that runs for ever, and no lock.
	if _, err := pool.Exec(t.Context(), `UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now() - interval '10 seconds', attempted_by = '{dead}'`); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	startQueue(t, pool, s, func(ctx context.Context, id string) error {
		defer close(done)
		got, err := s.Find(ctx, id, "")
		if err != nil {
			return err
		}
		_, err = s.Finish(ctx, got, cluster.Outcome{Status: clusterv1.Ready}, happened(cluster.EventReady))
		return err
	})
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatal("nobody took it up")
	}
	time.Sleep(3 * time.Second)
	if n := jobs(t, pool); n != 2 {
		t.Errorf("%d jobs: ready clusters are taken up again", n)
	}
	if left, err := s.Abandoned(t.Context(), queue.JobKind); err != nil || len(left) != 0 {
		t.Errorf("abandoned %v, %v", left, err)
	}
	_ = c
}

func TestLockIsHeldWhileItWorksAndItsLossIsNoticed(t *testing.T) {
	pool, s := openStore(t)
	c := create(t, s, row(1, "usr_a"))
	locker := postgres.NewLocker(pool)
	if _, err := pool.Exec(t.Context(), `UPDATE river_job SET state = 'completed', finalized_at = now()`); err != nil {
		t.Fatal(err)
	}
	if left, err := s.Abandoned(t.Context(), queue.JobKind); err != nil || len(left) != 1 {
		t.Fatalf("abandoned %v, %v", left, err)
	}
	held, err := locker.While(t.Context(), c.ID, func(ctx context.Context) error {
		if left, err := s.Abandoned(ctx, queue.JobKind); err != nil || len(left) != 0 {
			t.Errorf("worked on, yet abandoned: %v, %v", left, err)
		}
		if held, err := locker.While(ctx, c.ID, func(context.Context) error { t.Error("two at once"); return nil }); held || err != nil {
			t.Errorf("held twice: %v, %v", held, err)
		}
		if _, err := pool.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND classid = 27490`); err != nil {
			t.Error(err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Second):
			return errors.New("the loss was not noticed")
		}
	})
	if !held || !errors.Is(err, pkgpostgres.ErrLockLost) {
		t.Error(held, err)
	}
	if held, err := locker.While(t.Context(), "cl_none", func(context.Context) error { t.Error("worked on nothing"); return nil }); !held || err != nil {
		t.Error(held, err)
	}
}

func TestStopLeavesTheWorkToTheNext(t *testing.T) {
	pool, s := openStore(t)
	c := create(t, s, row(1, "usr_a"))
	began := make(chan struct{})
	q := startQueue(t, pool, s, func(ctx context.Context, _ string) error {
		close(began)
		<-ctx.Done()
		return context.Cause(ctx)
	})
	<-began
	if err := q.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	startQueue(t, pool, s, func(ctx context.Context, id string) error {
		defer close(done)
		got, err := s.Find(ctx, id, "")
		if err == nil {
			_, err = s.Finish(ctx, got, cluster.Outcome{Status: clusterv1.Ready}, happened(cluster.EventReady))
		}
		return err
	})
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatal("nobody took it up")
	}
	_ = c
}
