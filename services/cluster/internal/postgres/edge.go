package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubebyon/kubebyon/pkg/contract/clusterv1"
	"github.com/kubebyon/kubebyon/services/cluster/internal/cluster"
)

// foldWithin is how long after an event the same one counts as its return.
const foldWithin = 10 * time.Minute

// republish forgets what the edge said of a cluster that is to be reached otherwise, and remembers the host that gives way.
func (s *Store) republish(ctx context.Context, tx pgx.Tx, id string, host *string) error {
	_, err := tx.Exec(ctx, `UPDATE clusters SET edge_state = 'pending', edge_reason_code = $3, edge_reason_message = '', edge_reason_action = '', edge_since = $4,
			former_hosts = CASE WHEN coalesce($2, control_plane_host) = control_plane_host THEN former_hosts
				ELSE (array_prepend(control_plane_host, array_remove(array_remove(former_hosts, control_plane_host), $2)))[1:$5] END
		WHERE id = $1`, id, host, cluster.EdgeNotAsked, s.now(), cluster.MaxFormerHosts)
	return err
}

// Published implements cluster.PublishedStore.
func (s *Store) Published(ctx context.Context, after string, limit int) ([]clusterv1.PublishedCluster, error) {
	rows, err := s.pool.Query(ctx, `SELECT id, control_plane_host, vcluster_name, namespace, status FROM clusters
		WHERE public_access_mode = 'loadbalancer' AND id COLLATE "C" > $1 ORDER BY id COLLATE "C" LIMIT $2`, after, limit)
	if err != nil {
		return nil, failure(err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (clusterv1.PublishedCluster, error) {
		var c clusterv1.PublishedCluster
		err := row.Scan(&c.ID, &c.Host, &c.VClusterName, &c.Namespace, (*string)(&c.Status))
		return c, err
	})
	return out, failure(err)
}

// SetEdge implements cluster.PublishedStore. It is one statement; it locks and writes only the rows that change by it, in the
// order of their ids, so that two at once cannot wait for each other. Beside another event that comes at that moment a timeline may
// keep one too many until the next. A route that comes and goes tells each of its states once, with how often: else it would push all
// that is worth knowing out of the timeline.
func (s *Store) SetEdge(ctx context.Context, findings []cluster.EdgeFinding) error {
	var (
		ids, hosts, states, codes, messages, actions []string
		levels, events, texts                        []string
		since, at                                    []time.Time
	)
	for _, f := range findings {
		var r clusterv1.Reason
		if f.Reason != nil {
			r = *f.Reason
		}
		ids, hosts, states = append(ids, f.ID), append(hosts, f.Host), append(states, string(f.State))
		codes, messages, actions, since = append(codes, r.Code), append(messages, r.Message), append(actions, r.Action), append(since, f.Since)
		levels, events, texts, at = append(levels, string(f.Event.Level)), append(events, f.Event.Code), append(texts, f.Event.Message), append(at, f.Event.At)
	}
	_, err := s.pool.Exec(ctx, `WITH found AS (
			SELECT c.id, c.edge_state AS was, f.state, f.code, f.message, f.action, f.level, f.event, f.text, f.at,
				CASE WHEN c.edge_state = f.state THEN c.edge_since ELSE greatest(f.since, c.edge_since) END AS since
			FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::timestamptz[], $8::text[], $9::text[], $10::text[], $11::timestamptz[])
				AS f (id, host, state, code, message, action, since, level, event, text, at)
			JOIN clusters c ON c.id = f.id AND c.control_plane_host = f.host AND c.public_access_mode = 'loadbalancer'
			WHERE (c.edge_state, c.edge_reason_code, c.edge_reason_message, c.edge_reason_action) IS DISTINCT FROM (f.state, f.code, f.message, f.action)
			ORDER BY c.id FOR UPDATE OF c
		), stored AS (
			UPDATE clusters c SET edge_state = f.state, edge_reason_code = f.code, edge_reason_message = f.message, edge_reason_action = f.action,
				edge_since = f.since FROM found f WHERE c.id = f.id
		), again AS (
			DELETE FROM cluster_events e USING found f
			WHERE f.was <> f.state AND e.cluster_id = f.id AND (e.code, e.message, e.action) = (f.event, f.text, f.action) AND e.at > f.at - $13::interval
				AND NOT EXISTS (SELECT 1 FROM cluster_events o WHERE o.cluster_id = e.cluster_id AND o.id > e.id AND NOT starts_with(o.code, 'edge_'))
			RETURNING e.cluster_id, e.times, coalesce(e.first_at, e.at) AS first_at
		), told AS (
			INSERT INTO cluster_events (cluster_id, at, level, code, message, action, times, first_at)
			SELECT f.id, f.at, f.level, f.event, f.text, f.action, 1 + coalesce((SELECT sum(a.times) FROM again a WHERE a.cluster_id = f.id), 0),
				(SELECT min(a.first_at) FROM again a WHERE a.cluster_id = f.id)
			FROM found f WHERE f.was <> f.state RETURNING cluster_id
		)
		DELETE FROM cluster_events e USING (
			SELECT t.cluster_id, (SELECT o.id FROM cluster_events o WHERE o.cluster_id = t.cluster_id ORDER BY o.id DESC OFFSET $12 LIMIT 1) AS last
			FROM (SELECT cluster_id FROM told EXCEPT SELECT cluster_id FROM again) t
		) old WHERE e.cluster_id = old.cluster_id AND e.id <= old.last`,
		ids, hosts, states, codes, messages, actions, since, levels, events, texts, at, keepEvents-1, foldWithin)
	return failure(err)
}
