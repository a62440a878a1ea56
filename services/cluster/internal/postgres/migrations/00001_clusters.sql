-- +goose Up
CREATE TABLE clusters (
    id                  text PRIMARY KEY,
    -- What the work on this cluster holds as the second half of its advisory lock.
    lock_key            integer GENERATED ALWAYS AS IDENTITY UNIQUE,
    name                text NOT NULL,
    vcluster_name       text NOT NULL,
    namespace           text NOT NULL,
    owner_id            text NOT NULL,
    control_plane       text NOT NULL CHECK (control_plane IN ('vcluster', 'upstream')),
    control_plane_host  text NOT NULL,
    public_access_mode  text NOT NULL CHECK (public_access_mode IN ('nodeport', 'loadbalancer')),
    api_endpoint        text NOT NULL DEFAULT '',
    kubernetes_version  text NOT NULL DEFAULT '',
    status              text NOT NULL CHECK (status IN ('provisioning', 'ready', 'error', 'deleting')),
    reason_code         text NOT NULL DEFAULT '',
    reason_message      text NOT NULL DEFAULT '',
    reason_action       text NOT NULL DEFAULT '',
    generation          bigint NOT NULL DEFAULT 1,
    attempts            integer NOT NULL DEFAULT 0,
    created_at          timestamptz NOT NULL,
    updated_at          timestamptz NOT NULL,
    CONSTRAINT clusters_owner_name UNIQUE (owner_id, name),
    CONSTRAINT clusters_owner_vcluster_name UNIQUE (owner_id, vcluster_name),
    -- A namespace holds one cluster: it goes when the cluster goes.
    CONSTRAINT clusters_namespace UNIQUE (namespace)
);
-- The load balancer tells clusters apart by this name alone.
CREATE UNIQUE INDEX clusters_public_host ON clusters (control_plane_host) WHERE public_access_mode = 'loadbalancer';
CREATE INDEX clusters_created ON clusters (created_at DESC, id);
CREATE INDEX clusters_busy ON clusters (id) WHERE status IN ('provisioning', 'deleting');

CREATE TABLE cluster_events (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster_id  text NOT NULL REFERENCES clusters (id) ON DELETE CASCADE,
    at          timestamptz NOT NULL,
    level       text NOT NULL CHECK (level IN ('info', 'warning', 'error')),
    code        text NOT NULL,
    message     text NOT NULL,
    action      text NOT NULL DEFAULT ''
);
CREATE INDEX cluster_events_cluster ON cluster_events (cluster_id, id DESC);

-- +goose Down
DROP TABLE cluster_events;
DROP TABLE clusters;
