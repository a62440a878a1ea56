package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/pkg/postgres"
)

// serveInOneProcess answers GET …/clusters the way a single program would: session, query, encoding, and nothing around
// them. It prints its address and serves until ctx ends.
func serveInOneProcess(ctx context.Context, dsn string, stdout, stderr io.Writer) int {
	err := func() error {
		pool, err := postgres.Open(ctx, dsn, slog.New(slog.DiscardHandler)) // as each service does
		if err != nil {
			return err
		}
		defer pool.Close()
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		mux := http.NewServeMux()
		mux.HandleFunc("GET /query", func(w http.ResponseWriter, r *http.Request) { answerClusters(w, r, pool) })
		mux.HandleFunc("GET "+clustersPath, func(w http.ResponseWriter, r *http.Request) {
			cookie, err := r.Cookie("kubebyon_session")
			if err != nil || !sessionHolds(r.Context(), pool, cookie.Value) {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			answerClusters(w, r, pool)
		})
		server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
		defer context.AfterFunc(ctx, func() { _ = server.Close() })()
		fmt.Fprintf(stdout, "http://%s\n", listener.Addr())
		if err := server.Serve(listener); ctx.Err() == nil {
			return err
		}
		return nil
	}()
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", inOneProcess, err)
		return 1
	}
	return 0
}

// sessionHolds is the gateway's query.
func sessionHolds(ctx context.Context, pool *pgxpool.Pool, token string) bool {
	hash, now := sha256.Sum256([]byte(token)), time.Now()
	var id, email, role, session string
	var made, opened, seen, ends time.Time
	return pool.QueryRow(ctx, `select u.id, u.email, u.role, u.created_at, s.id, s.created_at, s.last_seen_at, s.expires_at
		from sessions s join users u on u.id = s.user_id
		where u.disabled_at is null and s.token_hash = $1 and s.expires_at > $2 and s.last_seen_at > $3`, hash[:], now, now.Add(-time.Hour)).
		Scan(&id, &email, &role, &made, &session, &opened, &seen, &ends) == nil
}

// answerClusters is the cluster service's query for an administrator, who owns all, and the gateway's body.
func answerClusters(w http.ResponseWriter, r *http.Request, pool *pgxpool.Pool) {
	rows, err := pool.Query(r.Context(), `SELECT id, name, vcluster_name, namespace, owner_id, control_plane, control_plane_host, public_access_mode,
		api_endpoint, kubernetes_version, status, reason_code, reason_message, reason_action, generation, attempts, created_at, updated_at,
		former_hosts, edge_state, edge_reason_code, edge_reason_message, edge_reason_action, edge_since, deletion_protection,
		coalesce((SELECT access FROM cluster_members WHERE cluster_id = clusters.id AND user_id = $1), '')
		FROM clusters WHERE true AND (cardinality($2::text[]) = 0 OR id = ANY ($2)) ORDER BY created_at DESC, id`, "usr_", []string{})
	var found []clusterv1.Cluster
	if err == nil {
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (clusterv1.Cluster, error) {
			var c clusterv1.Cluster
			var reason, why clusterv1.Reason
			var edge clusterv1.Edge
			var generation, attempts int64
			var former []string
			var membership string
			err := row.Scan(&c.ID, &c.Name, &c.VClusterName, &c.Namespace, &c.OwnerID, (*string)(&c.ControlPlane), &c.ControlPlaneHost, (*string)(&c.PublicAccessMode),
				&c.APIEndpoint, &c.KubernetesVersion, (*string)(&c.Status), &reason.Code, &reason.Message, &reason.Action, &generation, &attempts, &c.CreatedAt, &c.UpdatedAt,
				&former, (*string)(&edge.State), &why.Code, &why.Message, &why.Action, &edge.Since, &c.DeletionProtection, &membership)
			c.Access = clusterv1.Owner
			if reason.Code != "" {
				c.Reason = &reason
			}
			c.CreatedAt, c.UpdatedAt = c.CreatedAt.UTC(), c.UpdatedAt.UTC()
			return c, err
		})
	}
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(struct {
		Clusters []clusterv1.Cluster `json:"clusters"`
	}{found})
}
