-- +goose Up
-- One row per bootstrap token that was ever issued. The secret half is in no column: hash is the SHA-256 of id.secret.
CREATE TABLE tokens (
    id           text PRIMARY KEY,
    cluster_id   text NOT NULL,
    token_id     text NOT NULL,
    hash         bytea NOT NULL CHECK (octet_length(hash) = 32),
    created_by   text NOT NULL,
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL CHECK (expires_at > created_at),
    revoked_at   timestamptz,
    last_used_at timestamptz
);
CREATE INDEX tokens_by_cluster ON tokens (cluster_id, created_at DESC, id DESC);
CREATE INDEX tokens_by_token_id ON tokens (token_id);

-- +goose Down
DROP TABLE tokens;
