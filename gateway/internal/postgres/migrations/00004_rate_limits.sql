-- +goose Up
-- Who has tried lately, by the hash of a client's or an account's address. A time that is past says nothing any more. It has no index:
-- every try moves it, and only sweeps look for it.
create table rate_limits (
    name text not null,        -- of the limit
    key  bytea not null check (octet_length(key) = 32),
    tat  timestamptz not null, -- the theoretical arrival time: when the whole burst is possible again
    primary key (name, key)
) with (fillfactor = 70);

-- +goose Down
drop table rate_limits;
