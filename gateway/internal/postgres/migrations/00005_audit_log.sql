-- +goose Up
-- Who did what, and what came of it. Rows are added and read, never changed; docs/runbooks/read-the-audit-log.md says how an
-- operator archives old ones.
create table audit_log (
    id         bigint generated always as identity primary key, -- in the order of arrival
    at         timestamptz not null,
    actor      text        not null, -- a user's id; empty: nobody was logged in
    credential text        not null, -- a session's or an API token's id; empty: none, or not known
    action     text        not null, -- <object>.<verb>
    objects    text[]      not null, -- ids in their own form
    client     text        not null, -- an IP address
    outcome    text        not null check (outcome in ('ok', 'refused', 'failed')),
    status     integer     not null,
    code       text        not null, -- the problem's; empty: there was none
    trace_id   text        not null,
    detail     jsonb       not null  -- {"fields": [names]}; never a value
);
-- Every search is in the order of id.
create index audit_log_at on audit_log (at);
create index audit_log_actor on audit_log (actor, id);
create index audit_log_action on audit_log (action text_pattern_ops, id);
create index audit_log_objects on audit_log using gin (objects);
create index audit_log_client on audit_log (client, id);
create index audit_log_trace_id on audit_log (trace_id);
create index audit_log_not_ok on audit_log (outcome, id) where outcome <> 'ok';

-- +goose StatementBegin
create function audit_log_refuse() returns trigger language plpgsql as $$
begin
    raise exception 'audit_log is append-only: % is refused', tg_op using errcode = 'insufficient_privilege';
end
$$;
-- +goose StatementEnd
create trigger audit_log_append_only before update or delete or truncate on audit_log
    for each statement execute function audit_log_refuse();
-- Otherwise session_replication_role = replica would pass it by.
alter table audit_log enable always trigger audit_log_append_only;

-- +goose Down
drop table audit_log;
drop function audit_log_refuse;
