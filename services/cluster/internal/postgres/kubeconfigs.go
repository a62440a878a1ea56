package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
)

const (
	// listedKubeconfigs is how many of a cluster's are listed.
	listedKubeconfigs = 200

	kubeconfigColumns = `id, cluster_id, user_id, identity, access, created_at, expires_at, issued, revoked_at, revoked_by, gone`
	// again is when one whose identity could not be taken away is tried again: after 5 s, then twice as long each time, up to a minute.
	again = `interval '5 seconds' * least(power(2, tries), 12)`
)

func scanKubeconfig(row pgx.Row) (cluster.Kubeconfig, error) {
	var k cluster.Kubeconfig
	err := row.Scan(&k.ID, &k.ClusterID, &k.UserID, &k.Identity, (*string)(&k.Access), &k.CreatedAt, &k.ExpiresAt, &k.Issued, &k.RevokedAt, &k.RevokedBy, &k.Gone)
	k.CreatedAt, k.ExpiresAt = k.CreatedAt.UTC(), k.ExpiresAt.UTC()
	if k.RevokedAt != nil {
		at := k.RevokedAt.UTC()
		k.RevokedAt = &at
	}
	return k, err
}

func kubeconfigs(rows pgx.Rows, err error) ([]cluster.Kubeconfig, error) {
	if err != nil {
		return nil, failure(err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (cluster.Kubeconfig, error) { return scanKubeconfig(row) })
	return out, failure(err)
}

// AddKubeconfig implements cluster.KubeconfigStore.
func (s *Store) AddKubeconfig(ctx context.Context, k cluster.Kubeconfig, decide func(cluster.Cluster) (clusterv1.Access, error)) (cluster.Kubeconfig, error) {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		c, err := locked(ctx, tx, k.ClusterID, k.UserID)
		if err != nil {
			return err
		}
		if k.Access, err = decide(c); err != nil {
			return err
		}
		var n int
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM kubeconfigs WHERE cluster_id = $1 AND user_id = $2 AND revoked_at IS NULL AND NOT gone AND expires_at > $3`,
			k.ClusterID, k.UserID, s.now()).Scan(&n); err != nil {
			return err
		}
		if n >= cluster.MaxKubeconfigs {
			return cluster.TooManyKubeconfigs()
		}
		_, err = tx.Exec(ctx, `INSERT INTO kubeconfigs (id, cluster_id, user_id, identity, access, created_at, expires_at, next_try) VALUES ($1, $2, $3, $4, $5, $6, $7, $6)`,
			k.ID, k.ClusterID, k.UserID, k.Identity, string(k.Access), k.CreatedAt, k.ExpiresAt)
		return err
	})
	return k, failure(err)
}

// IssueKubeconfig implements cluster.KubeconfigStore.
func (s *Store) IssueKubeconfig(ctx context.Context, k cluster.Kubeconfig, expires time.Time, e clusterv1.Event) (bool, error) {
	issued := false
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		// First, as everybody takes it who takes a row of its kubeconfigs too.
		if _, err := tx.Exec(ctx, `SELECT FROM clusters WHERE id = $1 FOR UPDATE`, k.ClusterID); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `UPDATE kubeconfigs SET issued = true, expires_at = $2 WHERE id = $1 AND revoked_at IS NULL AND NOT gone AND created_at > $3`,
			k.ID, expires, s.now().Add(-cluster.IssueWithin))
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		issued = true
		return addEvent(ctx, tx, k.ClusterID, e)
	})
	return issued, failure(err)
}

// DropKubeconfig implements cluster.KubeconfigStore. It is of the past from then on: whoever asked has waited for what the tenant did.
func (s *Store) DropKubeconfig(ctx context.Context, k cluster.Kubeconfig) error {
	_, err := s.pool.Exec(ctx, `UPDATE kubeconfigs SET created_at = created_at - $2::interval, revoked_at = coalesce(revoked_at, $3::timestamptz), next_try = $3
		WHERE id = $1 AND NOT issued`, k.ID, cluster.IssueWithin, s.now())
	return failure(err)
}

// Kubeconfigs implements cluster.KubeconfigStore.
func (s *Store) Kubeconfigs(ctx context.Context, clusterID, userID string) ([]cluster.Kubeconfig, error) {
	return kubeconfigs(s.pool.Query(ctx, `SELECT `+kubeconfigColumns+` FROM kubeconfigs WHERE cluster_id = $1 AND issued AND ($2 = '' OR user_id = $2)
		ORDER BY created_at DESC, id LIMIT $3`, clusterID, userID, listedKubeconfigs))
}

// RevokeKubeconfig implements cluster.KubeconfigStore. The sweep leaves it to the caller for a while.
func (s *Store) RevokeKubeconfig(ctx context.Context, clusterID, id, by string, decide func(cluster.Cluster, cluster.Kubeconfig) (clusterv1.Event, error)) (cluster.Kubeconfig, error) {
	var out cluster.Kubeconfig
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		c, err := locked(ctx, tx, clusterID, by)
		if err != nil {
			return err
		}
		out, err = scanKubeconfig(tx.QueryRow(ctx, `SELECT `+kubeconfigColumns+` FROM kubeconfigs WHERE id = $1 AND cluster_id = $2 AND issued`, id, clusterID))
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		e, err := decide(c, out)
		if err != nil {
			return err
		}
		if out.State(s.now()) != clusterv1.KubeconfigActive {
			return nil
		}
		out, err = scanKubeconfig(tx.QueryRow(ctx, `UPDATE kubeconfigs SET revoked_at = $2::timestamptz, revoked_by = $3, tries = 1, next_try = $2::timestamptz + interval '5 seconds'
			WHERE id = $1 RETURNING `+kubeconfigColumns, id, s.now(), by))
		if err != nil {
			return err
		}
		return addEvent(ctx, tx, clusterID, e)
	})
	return out, failure(err)
}

// RevokeKubeconfigsOf implements cluster.KubeconfigStore.
func (s *Store) RevokeKubeconfigsOf(ctx context.Context, userID string) (int, error) {
	var n int
	err := s.pool.QueryRow(ctx, `WITH revoked AS (
			UPDATE kubeconfigs SET revoked_at = $2, next_try = $2 WHERE id IN (SELECT id FROM kubeconfigs
				WHERE user_id = $1 AND revoked_at IS NULL AND NOT gone AND expires_at > $2 ORDER BY id FOR UPDATE) RETURNING issued)
		SELECT count(*) FROM revoked WHERE issued`, userID, s.now()).Scan(&n)
	return n, failure(err)
}

// revokeAbove revokes an account's kubeconfigs of one cluster that say more than access, since it may do no more there now.
func (s *Store) revokeAbove(ctx context.Context, tx pgx.Tx, clusterID, userID string, access clusterv1.Access) error {
	_, err := tx.Exec(ctx, `UPDATE kubeconfigs SET revoked_at = $4, next_try = $4 WHERE id IN (SELECT id FROM kubeconfigs
		WHERE cluster_id = $1 AND user_id = $2 AND access = ANY ($3) AND revoked_at IS NULL AND NOT gone AND expires_at > $4 ORDER BY id FOR UPDATE)`,
		clusterID, userID, cluster.Above(access), s.now())
	return err
}

// DueKubeconfigs implements cluster.KubeconfigStore.
func (s *Store) DueKubeconfigs(ctx context.Context, limit int) ([]cluster.Kubeconfig, error) {
	now := s.now()
	return kubeconfigs(s.pool.Query(ctx, `UPDATE kubeconfigs SET tries = tries + 1, next_try = $1::timestamptz + `+again+`
		WHERE id IN (SELECT id FROM kubeconfigs WHERE NOT gone AND next_try <= $1
			AND (issued AND (revoked_at IS NOT NULL OR expires_at <= $1) OR NOT issued AND created_at <= $2)
			ORDER BY next_try LIMIT $3 FOR UPDATE SKIP LOCKED)
		RETURNING `+kubeconfigColumns, now, now.Add(-cluster.IssueWithin), limit))
}

// KubeconfigGone implements cluster.KubeconfigStore. Of one that was never handed out nothing stays.
func (s *Store) KubeconfigGone(ctx context.Context, k cluster.Kubeconfig) error {
	query := `UPDATE kubeconfigs SET gone = true WHERE id = $1`
	if !k.Issued {
		query = `DELETE FROM kubeconfigs WHERE id = $1 AND NOT issued`
	}
	_, err := s.pool.Exec(ctx, query, k.ID)
	return failure(err)
}

// ForgetKubeconfigs implements cluster.KubeconfigStore.
func (s *Store) ForgetKubeconfigs(ctx context.Context, before time.Time) error {
	_, err := s.pool.Exec(ctx, `DELETE FROM kubeconfigs WHERE gone AND coalesce(revoked_at, expires_at) < $1`, before)
	return failure(err)
}

// ClusterOf implements cluster.KubeconfigStore.
func (s *Store) ClusterOf(ctx context.Context, id string) (cluster.Cluster, error) {
	c, err := scan(s.pool.QueryRow(ctx, `SELECT `+columns+` FROM clusters WHERE id = $1`, id))
	return c, err
}
