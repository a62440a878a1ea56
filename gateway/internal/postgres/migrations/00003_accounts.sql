-- +goose Up
-- A disabled account keeps its rows and can do nothing.
alter table users add column disabled_at timestamptz;

-- Lists by address, and searches for how an address begins.
create index users_by_address on users (email collate "C");

-- Codes that were mailed to an address. There is a row for an address without an account too, so that asking for a code
-- is the same work for both. A newer code replaces the older one. The code itself is never stored.
create table mail_codes (
    email      text not null, -- lower case
    purpose    text not null check (purpose in ('register', 'reset_password')),
    code_hash  bytea not null check (octet_length(code_hash) = 32),
    tries      int not null default 0,
    expires_at timestamptz not null,
    primary key (email, purpose)
);
create index mail_codes_expires_at on mail_codes (expires_at);

-- Invitations that were not used yet; one per address. The link's token is never stored.
create table invitations (
    id         text primary key,
    email      text not null unique, -- lower case
    role       text not null check (role in ('admin', 'user')),
    token_hash bytea not null unique check (octet_length(token_hash) = 32),
    created_by text not null references users (id) on delete cascade,
    created_at timestamptz not null,
    expires_at timestamptz not null
);
create index invitations_created_by on invitations (created_by);

-- +goose Down
drop table invitations;
drop table mail_codes;
drop index users_by_address;
alter table users drop column disabled_at;
