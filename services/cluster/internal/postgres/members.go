package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
)

// locked takes the row's lock, under which a cluster's members change too, and gives the row with userID's membership. In
// two statements: what one statement reads besides the row is as old as its waiting for the lock is long.
func locked(ctx context.Context, tx pgx.Tx, id, userID string) (cluster.Cluster, error) {
	c, err := scan(tx.QueryRow(ctx, `SELECT `+columns+` FROM clusters WHERE id = $1 FOR UPDATE`, id))
	if err != nil {
		return c, err
	}
	m, _, err := member(ctx, tx, id, userID)
	c.Membership = m.Access
	return c, err
}

func member(ctx context.Context, tx pgx.Tx, id, userID string) (m clusterv1.Member, found bool, err error) {
	m, err = scanMember(tx.QueryRow(ctx, `SELECT `+memberColumns+` FROM cluster_members WHERE cluster_id = $1 AND user_id = $2`, id, userID))
	if errors.Is(err, pgx.ErrNoRows) {
		return clusterv1.Member{}, false, nil
	}
	return m, err == nil, err
}

const memberColumns = `user_id, access, added_by, added_at`

func scanMember(row pgx.Row) (clusterv1.Member, error) {
	var m clusterv1.Member
	err := row.Scan(&m.UserID, (*string)(&m.Access), &m.AddedBy, &m.AddedAt)
	m.AddedAt = m.AddedAt.UTC()
	return m, err
}

// Members implements cluster.Store.
func (s *Store) Members(ctx context.Context, id string) ([]clusterv1.Member, error) {
	rows, err := s.pool.Query(ctx, `SELECT `+memberColumns+` FROM cluster_members WHERE cluster_id = $1 ORDER BY added_at, user_id`, id)
	if err != nil {
		return nil, failure(err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (clusterv1.Member, error) { return scanMember(row) })
	return out, failure(err)
}

// SetMember implements cluster.Store.
func (s *Store) SetMember(ctx context.Context, id string, m clusterv1.Member, decide func(cluster.Cluster, clusterv1.Access) (clusterv1.Event, error)) (clusterv1.Member, error) {
	var out clusterv1.Member
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		c, err := locked(ctx, tx, id, m.AddedBy)
		if err != nil {
			return err
		}
		before, found, err := member(ctx, tx, id, m.UserID)
		if err != nil {
			return err
		}
		e, err := decide(c, before.Access)
		if err != nil {
			return err
		}
		if found && before.Access == m.Access {
			out = before
			return nil
		}
		if !found {
			var n int
			if err := tx.QueryRow(ctx, `SELECT count(*) FROM cluster_members WHERE cluster_id = $1`, id).Scan(&n); err != nil {
				return err
			}
			if n >= cluster.MaxMembers {
				return cluster.TooManyMembers()
			}
		}
		out, err = scanMember(tx.QueryRow(ctx, `INSERT INTO cluster_members (cluster_id, user_id, access, added_by, added_at) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (cluster_id, user_id) DO UPDATE SET access = excluded.access RETURNING `+memberColumns,
			id, m.UserID, string(m.Access), m.AddedBy, m.AddedAt))
		if err != nil {
			return err
		}
		if err := s.revokeAbove(ctx, tx, id, m.UserID, m.Access); err != nil {
			return err
		}
		return addEvent(ctx, tx, id, e)
	})
	return out, failure(err)
}

// RemoveMember implements cluster.Store.
func (s *Store) RemoveMember(ctx context.Context, id, userID, member string, decide func(cluster.Cluster) (clusterv1.Event, error)) error {
	return failure(pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		c, err := locked(ctx, tx, id, userID)
		if err != nil {
			return err
		}
		e, err := decide(c)
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `DELETE FROM cluster_members WHERE cluster_id = $1 AND user_id = $2`, id, member)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return cluster.MemberNotFound()
		}
		if err := s.revokeAbove(ctx, tx, id, member, ""); err != nil {
			return err
		}
		return addEvent(ctx, tx, id, e)
	}))
}
