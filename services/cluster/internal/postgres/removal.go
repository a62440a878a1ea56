package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
)

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// withRemoval adds to a cluster that is being deleted how far that is.
func withRemoval(ctx context.Context, db querier, c cluster.Cluster, err error) (cluster.Cluster, error) {
	if err != nil || c.Status != clusterv1.Deleting {
		return c, err
	}
	r := clusterv1.Removal{Remaining: []clusterv1.Remaining{}}
	var remaining, workers []byte
	err = db.QueryRow(ctx, `SELECT deadline, remaining, workers FROM cluster_removals WHERE cluster_id = $1`, c.ID).Scan(&r.Deadline, &remaining, &workers)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // it has gone since
		return c, nil
	case err != nil:
		return c, failure(err)
	}
	r.Deadline = r.Deadline.UTC()
	if err := errors.Join(json.Unmarshal(remaining, &r.Remaining), json.Unmarshal(workers, &r.Workers)); err != nil {
		return c, fmt.Errorf("the removal of %s: %w", c.ID, err)
	}
	c.Removal = &r
	return c, nil
}

func addRemoval(ctx context.Context, tx pgx.Tx, id string, r clusterv1.Removal) error {
	workers := r.Workers
	if workers == nil {
		workers = []clusterv1.Worker{}
	}
	text, err := json.Marshal(workers)
	if err == nil {
		_, err = tx.Exec(ctx, `INSERT INTO cluster_removals (cluster_id, deadline, workers) VALUES ($1, $2, $3)`, id, r.Deadline, text)
	}
	return err
}

// SetRemaining implements cluster.WorkStore.
func (s *Store) SetRemaining(ctx context.Context, c cluster.Cluster, left []clusterv1.Remaining) error {
	text, err := json.Marshal(left)
	if err != nil {
		return err
	}
	_, err = s.pool.Exec(ctx, `UPDATE cluster_removals SET remaining = $2 WHERE cluster_id = $1`, c.ID, text)
	return failure(err)
}

// Edge implements cluster.WorkStore.
func (s *Store) Edge(ctx context.Context, id string) (clusterv1.Edge, error) {
	var e clusterv1.Edge
	var why clusterv1.Reason
	err := s.pool.QueryRow(ctx, `SELECT edge_state, edge_reason_code, edge_reason_message, edge_reason_action, edge_since FROM clusters WHERE id = $1`, id).
		Scan((*string)(&e.State), &why.Code, &why.Message, &why.Action, &e.Since)
	if errors.Is(err, pgx.ErrNoRows) {
		return e, cluster.NotFound()
	}
	return *cluster.EdgeOf(e, why), failure(err)
}
