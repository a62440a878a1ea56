-- +goose Up
-- Pictures to solve. The id is known to its asker alone, and the answer's hash covers it: the row tells neither.
create table captchas (
    id_hash     bytea primary key check (octet_length(id_hash) = 32),
    answer_hash bytea not null check (octet_length(answer_hash) = 32),
    expires_at  timestamptz not null
);
create index captchas_expires_at on captchas (expires_at);

-- When log-ins failed lately, by the hash of an account's address, known or unknown alike, or of a client's address.
create table login_failures (
    key     bytea primary key check (octet_length(key) = 32),
    recent  timestamptz[] not null, -- the newest ones, newest first
    last_at timestamptz not null
);
create index login_failures_last_at on login_failures (last_at);

create table second_factors (
    user_id      text primary key references users (id) on delete cascade,
    secret       bytea not null,           -- sealed
    created_at   timestamptz not null,
    confirmed_at timestamptz,              -- null: log-ins do not ask for it yet
    last_step    bigint not null default 0, -- of the newest code that counted; none up to it counts again
    tries        int not null default 0,   -- since tries_since, without a right one
    tries_since  timestamptz not null
);

create table recovery_codes (
    user_id   text not null references second_factors (user_id) on delete cascade,
    code_hash bytea not null check (octet_length(code_hash) = 32),
    primary key (user_id, code_hash)
);

-- +goose Down
drop table recovery_codes;
drop table second_factors;
drop table login_failures;
drop table captchas;
