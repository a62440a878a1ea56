-- +goose Up
alter table clusters add column deletion_protection boolean not null default false;

-- +goose Down
alter table clusters drop column deletion_protection;
