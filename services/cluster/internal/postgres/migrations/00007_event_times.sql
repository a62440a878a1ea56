-- +goose Up
alter table cluster_events
    -- How often it happened, where it came again and again and nothing else did in between; at is then the last time.
    add column times    integer not null default 1,
    add column first_at timestamptz;

-- +goose Down
alter table cluster_events drop column times, drop column first_at;
