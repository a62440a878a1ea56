-- +goose Up
-- Requests that came with a key, so that they can be sent again without being done again. A key is known by its hash; the fingerprint and
-- the answer are made with the asker's credential, of which the database has the hash alone.
create table idempotency_keys (
    user_id     text not null references users (id) on delete cascade,
    key_hash    bytea not null check (octet_length(key_hash) = 32),
    holder      text not null,               -- one attempt at the request
    credential  text not null,               -- a session's or an API token's id
    fingerprint bytea not null check (octet_length(fingerprint) = 32),
    done        boolean not null default false,
    answer      bytea,                       -- sealed; null: not done, or too large to be kept
    expires_at  timestamptz not null,        -- the lease's end, and once it is done the answer's
    primary key (user_id, key_hash)
);
create index idempotency_keys_expires_at on idempotency_keys (expires_at);

-- +goose Down
drop table idempotency_keys;
