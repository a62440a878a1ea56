-- +goose Up
-- Who may use a cluster besides the one who created it and the administrators. An entry outlives its account: an id is
-- never given twice.
create table cluster_members (
    cluster_id  text not null references clusters (id) on delete cascade,
    user_id     text not null,
    access      text not null check (access in ('viewer', 'editor', 'owner')),
    added_by    text not null,
    added_at    timestamptz not null,
    primary key (cluster_id, user_id)
);
create index cluster_members_user on cluster_members (user_id);

-- +goose Down
drop table cluster_members;
