-- +goose Up
-- What the gateway's replicas share to have one certificate from an ACME server: accounts, keys, certificates and challenges, by
-- paths. Every value is sealed.
create table certificate_files (
    path        text primary key,
    sealed      bytea not null,
    modified_at timestamptz not null default now()
);

-- Who does what only one may do at a time. A holder that is gone has not extended its lease.
create table certificate_locks (
    name       text primary key,
    holder     text not null,
    expires_at timestamptz not null
);

-- +goose Down
drop table certificate_locks;
drop table certificate_files;
