-- +goose Up
-- The kubeconfigs that were made for accounts, each with an identity of its own in the tenant. No credential is kept.
create table kubeconfigs (
    id          text primary key,
    cluster_id  text not null references clusters (id) on delete cascade,
    user_id     text not null,
    -- Of the ServiceAccount.
    identity    text not null,
    access      text not null check (access in ('viewer', 'editor', 'owner')),
    created_at  timestamptz not null,
    expires_at  timestamptz not null,
    -- It was handed out. Before that its identity may not be there yet.
    issued      boolean not null default false,
    revoked_at  timestamptz,
    revoked_by  text not null default '',
    -- The identity is no longer in the tenant.
    gone        boolean not null default false,
    -- When it is to be taken away next, and how often that was tried.
    next_try    timestamptz not null,
    tries       integer not null default 0
);
create index kubeconfigs_cluster on kubeconfigs (cluster_id, created_at desc, id);
create index kubeconfigs_user on kubeconfigs (user_id) where not gone;
create index kubeconfigs_left on kubeconfigs (next_try) where not gone;

-- +goose Down
drop table kubeconfigs;
