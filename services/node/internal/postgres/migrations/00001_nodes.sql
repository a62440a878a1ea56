-- +goose Up
-- Nodes are read live from their tenants (docs/api/http-api.md): nothing writes this table. It is the place for what
-- KubeBYON itself will know of a machine and Kubernetes does not, such as who owns it.
CREATE TABLE nodes (
    cluster_id text NOT NULL,
    name       text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (cluster_id, name)
);

-- +goose Down
DROP TABLE nodes;
