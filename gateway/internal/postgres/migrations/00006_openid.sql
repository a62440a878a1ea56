-- +goose Up
-- Which person at an OpenID provider an account belongs to. One person per provider: an address that the provider gives to
-- somebody else later does not give them the account.
create table openid_identities (
    issuer       text not null,
    subject      text not null check (octet_length(subject) between 1 and 255),
    user_id      text not null references users (id) on delete cascade,
    created_at   timestamptz not null default now(),
    last_used_at timestamptz not null default now(),
    primary key (issuer, subject),
    unique (user_id, issuer)
);

-- An account that was made at such a log-in has no password.
alter table users alter column password_hash drop not null;

-- +goose Down
delete from users where password_hash is null;
alter table users alter column password_hash set not null;
drop table openid_identities;
