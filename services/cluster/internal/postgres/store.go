// Package postgres keeps clusters, their events and the order of their work in PostgreSQL. It must never talk to the
// host cluster, and reads no other service's table.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
)

// keepEvents is how many of a cluster's newest events are kept.
const keepEvents = 500

// Enqueuer puts work on a cluster into the queue, as part of tx.
type Enqueuer interface {
	EnqueueTx(ctx context.Context, tx pgx.Tx, clusterID string) error
}

// Store implements cluster.Store and cluster.WorkStore.
type Store struct {
	pool  *pgxpool.Pool
	queue Enqueuer
	now   func() time.Time
}

// New gives a store on a migrated database.
func New(pool *pgxpool.Pool, queue Enqueuer, now func() time.Time) *Store {
	return &Store{pool: pool, queue: queue, now: now}
}

const columns = `id, name, vcluster_name, namespace, owner_id, control_plane, control_plane_host, public_access_mode,
	api_endpoint, kubernetes_version, status, reason_code, reason_message, reason_action, generation, attempts, created_at, updated_at,
	former_hosts, edge_state, edge_reason_code, edge_reason_message, edge_reason_action, edge_since, deletion_protection`

// membership is one more column, of the account $1.
const membership = `coalesce((SELECT access FROM cluster_members WHERE cluster_id = clusters.id AND user_id = $1), '')`

func scanFor(row pgx.Row) (cluster.Cluster, error) {
	var access string
	c, err := scan(row, &access)
	c.Membership = clusterv1.Access(access)
	return c, err
}

func scan(row pgx.Row, more ...any) (cluster.Cluster, error) {
	var c cluster.Cluster
	var r, why clusterv1.Reason
	var edge clusterv1.Edge
	// As plain strings: pgx asks reflection about a named type, in every query and for longer than all else takes.
	err := row.Scan(append([]any{&c.ID, &c.Name, &c.VClusterName, &c.Namespace, &c.OwnerID, (*string)(&c.ControlPlane), &c.ControlPlaneHost, (*string)(&c.PublicAccessMode),
		&c.APIEndpoint, &c.KubernetesVersion, (*string)(&c.Status), &r.Code, &r.Message, &r.Action, &c.Generation, &c.Attempts, &c.CreatedAt, &c.UpdatedAt,
		&c.FormerHosts, (*string)(&edge.State), &why.Code, &why.Message, &why.Action, &edge.Since, &c.DeletionProtection}, more...)...)
	if errors.Is(err, pgx.ErrNoRows) {
		return cluster.Cluster{}, cluster.NotFound()
	}
	if r.Code != "" {
		c.Reason = &r
	}
	c.CreatedAt, c.UpdatedAt = c.CreatedAt.UTC(), c.UpdatedAt.UTC()
	if c.PublicAccessMode == clusterv1.LoadBalancer {
		c.Edge = cluster.EdgeOf(edge, why)
	}
	return c, failure(err)
}

// failure gives an error of the database the meaning that it has for whoever asked.
func failure(err error) error {
	if err == nil {
		return nil
	}
	var f *fault.Error
	if errors.As(err, &f) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.ConstraintName {
		case "clusters_owner_name":
			return fault.New(fault.Conflict, "cluster_name_taken", "you have a cluster of this name already").
				In("name").Do("choose another name, or wait until the other one is deleted").Because(err)
		case "clusters_owner_vcluster_name":
			return fault.New(fault.Conflict, "cluster_name_taken", "one of your clusters has the same vcluster_name already").
				In("vcluster_name").Do("choose another name or vcluster_name, or wait until the other one is deleted").Because(err)
		case "clusters_namespace":
			return cluster.NamespaceInUse("").Because(err)
		case "clusters_public_host":
			return fault.New(fault.Conflict, "control_plane_host_taken", "another cluster is published under this domain").
				In("control_plane_host").Do("choose another domain").Because(err)
		}
		switch pg.Code[:2] {
		case "08", "53", "57", "55": // connection, resources, operator's intervention, in use
		default:
			return err
		}
	}
	return fault.New(fault.Unavailable, "database_unavailable", "the database cannot be reached").Do("try again in a moment").Because(err)
}

// Create implements cluster.Store.
func (s *Store) Create(ctx context.Context, c cluster.Cluster, e clusterv1.Event) (cluster.Cluster, error) {
	var out cluster.Cluster
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var err error
		out, err = scan(tx.QueryRow(ctx, `INSERT INTO clusters (id, name, vcluster_name, namespace, owner_id, control_plane,
				control_plane_host, public_access_mode, status, created_at, updated_at, edge_since, deletion_protection)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $10, $12) RETURNING `+columns,
			c.ID, c.Name, c.VClusterName, c.Namespace, c.OwnerID, c.ControlPlane, c.ControlPlaneHost, c.PublicAccessMode, c.Status, c.CreatedAt, c.UpdatedAt,
			c.DeletionProtection))
		if err != nil {
			return err
		}
		if err := addEvent(ctx, tx, c.ID, e); err != nil {
			return err
		}
		return s.queue.EnqueueTx(ctx, tx, c.ID)
	})
	return out, failure(err)
}

// List implements cluster.Store. Two statements, so that each is planned for what it asks.
func (s *Store) List(ctx context.Context, userID string, all bool, only []string) ([]cluster.Cluster, error) {
	if only == nil {
		only = []string{}
	}
	which := `id IN (SELECT id FROM clusters WHERE owner_id = $1 UNION ALL SELECT cluster_id FROM cluster_members WHERE user_id = $1)`
	if all {
		which = `true`
	}
	rows, err := s.pool.Query(ctx, `SELECT `+columns+`, `+membership+` FROM clusters
		WHERE `+which+` AND (cardinality($2::text[]) = 0 OR id = ANY ($2)) ORDER BY created_at DESC, id`, userID, only)
	if err != nil {
		return nil, failure(err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (cluster.Cluster, error) { return scanFor(row) })
	return out, failure(err)
}

// Find implements cluster.Store.
func (s *Store) Find(ctx context.Context, id, userID string) (cluster.Cluster, error) {
	c, err := scanFor(s.pool.QueryRow(ctx, `SELECT `+columns+`, `+membership+` FROM clusters WHERE id = $2`, userID, id))
	return withRemoval(ctx, s.pool, c, err)
}

// Update implements cluster.Store.
func (s *Store) Update(ctx context.Context, id, userID string, decide func(cluster.Cluster) (cluster.Change, clusterv1.Event, error)) (cluster.Cluster, error) {
	var out cluster.Cluster
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		c, err := locked(ctx, tx, id, userID)
		if err != nil {
			return err
		}
		ch, e, err := decide(c)
		if err != nil {
			return err
		}
		if ch == (cluster.Change{}) {
			out = c
			return nil
		}
		if ch.ControlPlaneHost != nil || ch.PublicAccessMode != nil {
			if err := s.republish(ctx, tx, id, ch.ControlPlaneHost); err != nil {
				return err
			}
		}
		var why clusterv1.Reason
		if ch.Reason != nil {
			why = *ch.Reason
		}
		out, err = scan(tx.QueryRow(ctx, `UPDATE clusters SET name = coalesce($2, name), control_plane_host = coalesce($3, control_plane_host),
				public_access_mode = coalesce($4, public_access_mode), updated_at = $5,
				deletion_protection = coalesce($7, deletion_protection),
				generation = generation + CASE WHEN $6 THEN 1 ELSE 0 END,
				status = CASE WHEN $6 THEN 'provisioning' ELSE status END,
				attempts = CASE WHEN $6 THEN 0 ELSE attempts END,
				reason_code = CASE WHEN $6 THEN $8 ELSE reason_code END,
				reason_message = CASE WHEN $6 THEN $9 ELSE reason_message END,
				reason_action = CASE WHEN $6 THEN $10 ELSE reason_action END
			WHERE id = $1 RETURNING `+columns, id, ch.Name, ch.ControlPlaneHost, ch.PublicAccessMode, s.now(), ch.Work, ch.DeletionProtection,
			why.Code, why.Message, why.Action))
		if err != nil {
			return err
		}
		if err := addEvent(ctx, tx, id, e); err != nil {
			return err
		}
		if !ch.Work {
			return nil
		}
		return s.queue.EnqueueTx(ctx, tx, id)
	})
	return out, failure(err)
}

// Delete implements cluster.Store.
func (s *Store) Delete(ctx context.Context, id, userID string, r clusterv1.Removal, allow func(cluster.Cluster) error, events ...clusterv1.Event) (cluster.Cluster, error) {
	var out cluster.Cluster
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		c, err := locked(ctx, tx, id, userID)
		if err != nil {
			return err
		}
		if err := allow(c); err != nil {
			return err
		}
		if c.Status == clusterv1.Deleting {
			out, err = withRemoval(ctx, tx, c, nil)
			return err
		}
		if err := addRemoval(ctx, tx, id, r); err != nil {
			return err
		}
		out, err = scan(tx.QueryRow(ctx, `UPDATE clusters SET status = 'deleting', generation = generation + 1, attempts = 0, updated_at = $2,
			reason_code = '', reason_message = '', reason_action = '' WHERE id = $1 RETURNING `+columns, id, s.now()))
		if out, err = withRemoval(ctx, tx, out, err); err != nil {
			return err
		}
		for _, e := range events {
			if err := addEvent(ctx, tx, id, e); err != nil {
				return err
			}
		}
		return s.queue.EnqueueTx(ctx, tx, id)
	})
	return out, failure(err)
}

// Events implements cluster.Store.
func (s *Store) Events(ctx context.Context, id string) ([]clusterv1.Event, error) {
	rows, err := s.pool.Query(ctx, `SELECT at, level, code, message, action, times, coalesce(first_at, at) FROM (
			SELECT * FROM cluster_events WHERE cluster_id = $1 ORDER BY id DESC LIMIT $2) newest ORDER BY id`, id, keepEvents)
	if err != nil {
		return nil, failure(err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (clusterv1.Event, error) {
		var e clusterv1.Event
		var times int
		var first time.Time
		err := row.Scan(&e.At, &e.Level, &e.Code, &e.Message, &e.Action, &times, &first)
		e.At = e.At.UTC()
		if times > 1 {
			e.Message += fmt.Sprintf(" (%d times since %s)", times, first.UTC().Format(time.RFC3339))
		}
		return e, err
	})
	return out, failure(err)
}

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func addEvent(ctx context.Context, db execer, id string, e clusterv1.Event) error {
	_, err := db.Exec(ctx, `WITH added AS (
			INSERT INTO cluster_events (cluster_id, at, level, code, message, action) VALUES ($1, $2, $3, $4, $5, $6))
		DELETE FROM cluster_events WHERE cluster_id = $1 AND id <= (
			SELECT id FROM cluster_events WHERE cluster_id = $1 ORDER BY id DESC OFFSET $7 LIMIT 1)`,
		id, e.At, e.Level, e.Code, e.Message, e.Action, keepEvents-1)
	return err
}

// Begin implements cluster.WorkStore.
func (s *Store) Begin(ctx context.Context, id string) (cluster.Cluster, bool, error) {
	c, err := scan(s.pool.QueryRow(ctx, `UPDATE clusters SET attempts = attempts + 1
		WHERE id = $1 AND status IN ('provisioning', 'deleting') RETURNING `+columns, id))
	if fault.Is(err, fault.NotFound) {
		return cluster.Cluster{}, false, nil
	}
	c, err = withRemoval(ctx, s.pool, c, err)
	return c, err == nil, err
}

// Current implements cluster.WorkStore.
func (s *Store) Current(ctx context.Context, c cluster.Cluster) (bool, error) {
	var n int
	err := s.pool.QueryRow(ctx, `SELECT count(*) FROM clusters WHERE id = $1 AND generation = $2`, c.ID, c.Generation).Scan(&n)
	return n == 1, failure(err)
}

// Report implements cluster.WorkStore.
func (s *Store) Report(ctx context.Context, c cluster.Cluster, reason *clusterv1.Reason, e clusterv1.Event) (bool, error) {
	current := false
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var r clusterv1.Reason
		if reason != nil {
			r = *reason
		}
		tag, err := tx.Exec(ctx, `UPDATE clusters SET
				reason_code = CASE WHEN $3 THEN $4 ELSE reason_code END,
				reason_message = CASE WHEN $3 THEN $5 ELSE reason_message END,
				reason_action = CASE WHEN $3 THEN $6 ELSE reason_action END, updated_at = $7
			WHERE id = $1 AND generation = $2`, c.ID, c.Generation, reason != nil, r.Code, r.Message, r.Action, s.now())
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		current = true
		return addEvent(ctx, tx, c.ID, e)
	})
	return current, failure(err)
}

// Finish implements cluster.WorkStore.
func (s *Store) Finish(ctx context.Context, c cluster.Cluster, o cluster.Outcome, e clusterv1.Event) (bool, error) {
	current := false
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var r clusterv1.Reason
		if o.Reason != nil {
			r = *o.Reason
		}
		tag, err := tx.Exec(ctx, `UPDATE clusters SET status = $3, reason_code = $4, reason_message = $5, reason_action = $6, attempts = 0,
				api_endpoint = CASE WHEN $7 = '' THEN api_endpoint ELSE $7 END,
				kubernetes_version = CASE WHEN $8 = '' THEN kubernetes_version ELSE $8 END, updated_at = $9
			WHERE id = $1 AND generation = $2 AND status = 'provisioning'`,
			c.ID, c.Generation, o.Status, r.Code, r.Message, r.Action, o.APIEndpoint, o.KubernetesVersion, s.now())
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		current = true
		return addEvent(ctx, tx, c.ID, e)
	})
	return current, failure(err)
}

// Remove implements cluster.WorkStore.
func (s *Store) Remove(ctx context.Context, id string) error {
	_, err := s.pool.Exec(ctx, `DELETE FROM clusters WHERE id = $1 AND status = 'deleting'`, id)
	return failure(err)
}

// Abandoned gives the busy clusters that nobody works on and no job waits for: a process was killed while it worked on
// them. A job counts as begun for two seconds, the time that it may take to get the lock.
func (s *Store) Abandoned(ctx context.Context, jobKind string) ([]string, error) {
	rows, err := s.pool.Query(ctx, `SELECT c.id FROM clusters c
		WHERE c.status IN ('provisioning', 'deleting')
		  AND NOT EXISTS (SELECT 1 FROM river_job j WHERE j.kind = $1 AND j.args->>'cluster_id' = c.id
			AND (j.state IN ('available', 'pending', 'retryable', 'scheduled')
			  OR j.state = 'running' AND j.attempted_at > now() - interval '2 seconds'))
		  AND NOT EXISTS (SELECT 1 FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
			AND l.classid::bigint = $2 AND l.objid::bigint = c.lock_key
			AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))`, jobKind, int64(lockClass))
	if err != nil {
		return nil, failure(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return ids, failure(err)
}

// Enqueue adds a job for the cluster outside of any change to it.
func (s *Store) Enqueue(ctx context.Context, id string) error {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return s.queue.EnqueueTx(ctx, tx, id) })
	if err != nil {
		return failure(fmt.Errorf("enqueue: %w", err))
	}
	return nil
}
