-- +goose Up
create table users (
    id            text primary key,
    email         text not null unique, -- lower case
    password_hash text not null,        -- argon2id, PHC form
    role          text not null check (role in ('admin', 'user')),
    created_at    timestamptz not null default now(),
    updated_at    timestamptz not null default now()
);

-- A session's token itself is never stored.
create table sessions (
    token_hash   bytea primary key check (octet_length(token_hash) = 32),
    user_id      text not null references users (id) on delete cascade,
    created_at   timestamptz not null,
    last_seen_at timestamptz not null,
    expires_at   timestamptz not null
);
create index sessions_user_id on sessions (user_id);
create index sessions_expires_at on sessions (expires_at);

-- Links for making the first administrator. Emptied when one exists.
create table setup_links (
    token_hash bytea primary key check (octet_length(token_hash) = 32),
    expires_at timestamptz not null
);

create table settings (
    name       text primary key,
    value      text not null,
    updated_at timestamptz not null default now(),
    updated_by text
);

-- +goose Down
drop table settings;
drop table setup_links;
drop table sessions;
drop table users;
