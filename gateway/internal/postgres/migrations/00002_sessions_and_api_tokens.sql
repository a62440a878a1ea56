-- +goose Up
-- Sessions from before stay: the default gives each an id. It also serves a replica that is still the old one.
alter table sessions
    add column id text not null unique default 'ses_' || substr(replace(gen_random_uuid()::text, '-', ''), 1, 20),
    add column client_address text not null default '',
    add column user_agent     text not null default '';
create index sessions_last_seen_at on sessions (last_seen_at);

-- A token's value itself is never stored.
create table api_tokens (
    id           text primary key check (id ~ '^pat_[a-z0-9]{20}$'),
    token_hash   bytea not null unique check (octet_length(token_hash) = 32),
    user_id      text not null references users (id) on delete cascade,
    name         text not null,
    scopes       text[] not null,
    created_at   timestamptz not null,
    expires_at   timestamptz not null,
    last_used_at timestamptz,
    unique (user_id, name)
);

-- +goose Down
drop table api_tokens;
drop index sessions_last_seen_at;
alter table sessions drop column user_agent, drop column client_address, drop column id;
