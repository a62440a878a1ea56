-- +goose Up
alter table clusters
    -- What the edge found out about the domain last; not asked, since that time, until its first report. Of
    -- public_access_mode loadbalancer alone.
    add column edge_state          text not null default 'pending' check (edge_state in ('serving', 'pending', 'skipped', 'failed')),
    add column edge_reason_code    text not null default 'edge_not_asked',
    add column edge_reason_message text not null default '',
    add column edge_reason_action  text not null default '',
    add column edge_since          timestamptz not null default now(),
    -- The hosts before control_plane_host, the newest first: machines may have joined by them.
    add column former_hosts        text[] not null default '{}';
-- In the order of bytes, which is that of the pages.
create index clusters_published on clusters (id collate "C") where public_access_mode = 'loadbalancer';

-- +goose Down
drop index clusters_published;
alter table clusters
    drop column edge_state, drop column edge_reason_code, drop column edge_reason_message, drop column edge_reason_action,
    drop column edge_since, drop column former_hosts;
