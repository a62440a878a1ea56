// Package postgres keeps the records of bootstrap tokens. It must never see a token's secret half.
package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/kubebyon/kubebyon/pkg/fault"
	"github.com/kubebyon/kubebyon/services/token/internal/token"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations makes the table tokens; it is safe with several replicas starting at once (see pkg/postgres).
func Migrations() fs.FS {
	sub, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return migrations // the name is a constant: it is always valid
	}
	return sub
}

// Store is token.Store over PostgreSQL.
type Store struct{ pool *pgxpool.Pool }

// New keeps records through pool, which its caller closes.
func New(pool *pgxpool.Pool) *Store { return &Store{pool: pool} }

const columns = "id, cluster_id, token_id, hash, created_by, created_at, expires_at, revoked_at, last_used_at"

// listed bounds one cluster's list to what fits a message; the newest come first.
const listed = 1000

// Insert adds a record.
func (s *Store) Insert(ctx context.Context, r token.Record) error {
	_, err := s.pool.Exec(ctx, "INSERT INTO tokens ("+columns+") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
		r.ID, r.ClusterID, r.TokenID, r.Hash[:], r.CreatedBy, r.CreatedAt, r.ExpiresAt, r.RevokedAt, r.LastUsedAt)
	return wrap("insert a token", err)
}

// ByCluster gives the newest 1000 records of a cluster, newest first.
func (s *Store) ByCluster(ctx context.Context, clusterID string) ([]token.Record, error) {
	return s.query(ctx, "list tokens", "SELECT "+columns+" FROM tokens WHERE cluster_id = $1 ORDER BY created_at DESC, id DESC LIMIT $2", clusterID, listed)
}

// ByTokenID gives every record with that public half.
func (s *Store) ByTokenID(ctx context.Context, tokenID string) ([]token.Record, error) {
	return s.query(ctx, "find a token", "SELECT "+columns+" FROM tokens WHERE token_id = $1", tokenID)
}

// Revoke keeps the first time at which a token was revoked.
func (s *Store) Revoke(ctx context.Context, clusterID, id string, at time.Time) (token.Record, error) {
	records, err := s.query(ctx, "revoke a token",
		"UPDATE tokens SET revoked_at = COALESCE(revoked_at, $3) WHERE cluster_id = $1 AND id = $2 RETURNING "+columns, clusterID, id, at)
	if err == nil && len(records) == 0 {
		err = fault.New(fault.NotFound, "token_not_found", "this cluster has no such join token").In("token_id").
			Do("list the cluster's join tokens for their ids")
	}
	if err != nil {
		return token.Record{}, err
	}
	return records[0], nil
}

// Forget removes a cluster's records.
func (s *Store) Forget(ctx context.Context, clusterID string) (int64, error) {
	tag, err := s.pool.Exec(ctx, "DELETE FROM tokens WHERE cluster_id = $1", clusterID)
	return tag.RowsAffected(), wrap("forget a cluster's tokens", err)
}

// Used never moves the time backwards.
func (s *Store) Used(ctx context.Context, id string, at time.Time) error {
	_, err := s.pool.Exec(ctx, "UPDATE tokens SET last_used_at = GREATEST(last_used_at, $2) WHERE id = $1", id, at)
	return wrap("note a token's use", err)
}

func (s *Store) query(ctx context.Context, doing, sql string, args ...any) ([]token.Record, error) {
	rows, err := s.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, wrap(doing, err)
	}
	records, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r token.Record, err error) {
		var hash []byte
		err = row.Scan(&r.ID, &r.ClusterID, &r.TokenID, &hash, &r.CreatedBy, &r.CreatedAt, &r.ExpiresAt, &r.RevokedAt, &r.LastUsedAt)
		if err == nil && copy(r.Hash[:], hash) != len(r.Hash) {
			err = errors.New("a hash of the wrong length") // which the table's CHECK rules out
		}
		r.CreatedAt, r.ExpiresAt = r.CreatedAt.UTC(), r.ExpiresAt.UTC()
		for _, at := range []*time.Time{r.RevokedAt, r.LastUsedAt} {
			if at != nil {
				*at = at.UTC()
			}
		}
		return r, err
	})
	return records, wrap(doing, err)
}

// wrap names what was being done. A server that is away, full or shutting down is the caller's to try again.
func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s: %w", doing, err)
	var refused *pgconn.PgError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &refused) && !slices.Contains([]string{"08", "53", "57", "58"}, refused.Code[:min(2, len(refused.Code))]):
		return err
	}
	return fault.New(fault.Unavailable, "database_unavailable", "the database does not answer").
		Do("try again; if it stays, the operator looks at PostgreSQL").Because(err)
}
