-- +goose Up
-- How far the removal of a cluster of status deleting is.
create table cluster_removals (
    cluster_id  text primary key references clusters (id) on delete cascade,
    deadline    timestamptz not null,
    remaining   jsonb not null default '[]',
    workers     jsonb not null default '[]'
);
insert into cluster_removals (cluster_id, deadline)
select id, now() + interval '5 minutes' from clusters where status = 'deleting';

-- +goose Down
drop table cluster_removals;
