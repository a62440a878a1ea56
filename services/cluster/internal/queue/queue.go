// Package queue runs the work on clusters with River: one job per order, one cluster in one process at a time, and work
// whose process was killed is taken up within seconds. It must never know what the work consists of.
package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
)

// JobKind names the jobs in River's table.
const JobKind = "cluster_work"

const (
	queueName = "clusters"
	// reapEvery is how soon after a crash work is taken up again.
	reapEvery = 2 * time.Second
	// reapLimit bounds one search: a connection that has gone silent must not be the last.
	reapLimit = 10 * time.Second
	// busyAgain is when a job whose cluster is being worked on looks again. Under River's five seconds it is exact.
	busyAgain = time.Second
	// lockTries and lockPause are what a job waits for a lock before it gives its place to another one.
	lockTries = 4
	lockPause = 50 * time.Millisecond
	// retryAfter an error of the work itself.
	retryAfter = 5 * time.Second
)

// Work brings a cluster to where its row asks it to be; an error means that it is to be called again. One with the method
// Again() time.Duration says when, and is no failure.
type Work func(ctx context.Context, clusterID string) error

// Locker runs work while no other process works on the cluster.
type Locker interface {
	While(ctx context.Context, clusterID string, work func(context.Context) error) (held bool, err error)
}

// Orders finds work that a killed process has left, and orders it again.
type Orders interface {
	Abandoned(ctx context.Context, jobKind string) ([]string, error)
	Enqueue(ctx context.Context, clusterID string) error
}

type args struct {
	ClusterID string `json:"cluster_id"`
}

func (args) Kind() string { return JobKind }

// Inserter adds jobs; it needs no Run.
type Inserter struct{ client *river.Client[pgx.Tx] }

// NewInserter makes jobs that Queue works on.
func NewInserter(pool *pgxpool.Pool, log *slog.Logger) (*Inserter, error) {
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: log})
	if err != nil {
		return nil, fmt.Errorf("queue: %w", err)
	}
	return &Inserter{client: client}, nil
}

// EnqueueTx adds a job that exists when tx is committed. Two jobs for one cluster do no harm: the second finds nothing
// to do.
func (i *Inserter) EnqueueTx(ctx context.Context, tx pgx.Tx, clusterID string) error {
	_, err := i.client.InsertTx(ctx, tx, args{ClusterID: clusterID}, &river.InsertOpts{Queue: queueName})
	return err
}

// Queue works on jobs between Start and Stop.
type Queue struct {
	client *river.Client[pgx.Tx]
	orders Orders
	log    *slog.Logger
	reaper sync.WaitGroup
	cancel context.CancelFunc
}

// New prepares workers for at most parallel clusters at once. longest is how long one call of work may take.
func New(pool *pgxpool.Pool, locker Locker, orders Orders, work Work, parallel int, longest time.Duration, log *slog.Logger) (*Queue, error) {
	workers := river.NewWorkers()
	if err := river.AddWorkerSafely(workers, &worker{locker: locker, work: work, longest: longest}); err != nil {
		return nil, fmt.Errorf("queue: %w", err)
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:  map[string]river.QueueConfig{queueName: {MaxWorkers: parallel}},
		Workers: workers,
		// NOTIFY wakes the fetcher; the cooldown is what it then waits to see more.
		FetchCooldown: 20 * time.Millisecond, FetchPollInterval: time.Second,
		JobTimeout: longest,
		// The reaper looks after clusters; this only tidies the rows of jobs whose process was killed.
		RescueStuckJobsAfter:        longest + time.Minute,
		CompletedJobRetentionPeriod: time.Hour, DiscardedJobRetentionPeriod: time.Hour, CancelledJobRetentionPeriod: time.Hour,
		Logger: log,
	})
	if err != nil {
		return nil, fmt.Errorf("queue: %w", err)
	}
	return &Queue{client: client, orders: orders, log: log}, nil
}

// Start begins to work. Call Stop to end it; the end of ctx alone does not.
func (q *Queue) Start(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	if err := q.client.Start(ctx); err != nil {
		return fmt.Errorf("queue: %w", err)
	}
	ctx, q.cancel = context.WithCancel(ctx)
	q.reaper.Go(func() { q.reap(ctx) })
	return nil
}

// Stop takes no further job, ends the context of those that run and waits for them: a chart operation is waited for, the
// wait for a control plane is not. What is left is taken up by the next process.
func (q *Queue) Stop(ctx context.Context) error {
	q.cancel()
	q.reaper.Wait()
	return q.client.StopAndCancel(ctx)
}

func (q *Queue) reap(ctx context.Context) {
	tick := time.NewTicker(reapEvery)
	defer tick.Stop()
	for {
		if err := q.takeUp(ctx); err != nil && ctx.Err() == nil {
			q.log.WarnContext(ctx, "the search for abandoned work failed", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (q *Queue) takeUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reapLimit)
	defer cancel()
	ids, err := q.orders.Abandoned(ctx, JobKind)
	for _, id := range ids {
		q.log.InfoContext(ctx, "abandoned work is taken up", slog.String("cluster", id))
		err = errors.Join(err, q.orders.Enqueue(ctx, id))
	}
	return err
}

type worker struct {
	river.WorkerDefaults[args]
	locker  Locker
	work    Work
	longest time.Duration
}

func (w *worker) Timeout(*river.Job[args]) time.Duration { return w.longest }

// NextRetry is soon and steady: how long to wait for what is decided by the work.
func (w *worker) NextRetry(*river.Job[args]) time.Time { return time.Now().Add(retryAfter) }

func (w *worker) Work(ctx context.Context, job *river.Job[args]) error {
	var again interface{ Again() time.Duration }
	for try := 1; ; try++ {
		held, err := w.locker.While(ctx, job.Args.ClusterID, func(ctx context.Context) error {
			return w.work(ctx, job.Args.ClusterID)
		})
		switch {
		case ctx.Err() != nil:
			return river.JobSnooze(0) // the process stops; another one takes it up at once
		case errors.As(err, &again):
			return river.JobSnooze(again.Again())
		case err != nil || held:
			return err
		case try == lockTries:
			return river.JobSnooze(busyAgain)
		}
		// Often it is the end of the work before: its outcome is written and its lock about to go.
		select {
		case <-ctx.Done():
		case <-time.After(lockPause):
		}
	}
}
