-- Trains and slots (ADR 12). `position` is a job's place at its gate: along a train, or in turn for a slot;
-- null while it has none. Only jobs with a train or slot are in the indexes below.
alter table dibs_jobs add column position integer;
alter table dibs_jobs add column slot_policy text;
alter table dibs_jobs add column slot_limit integer;
alter table dibs_jobs add column unique_until integer;
alter table dibs_finished add column position integer;
alter table dibs_finished add column slot_policy text;
alter table dibs_finished add column slot_limit integer;
alter table dibs_finished add column unique_until integer;

-- A row per train or slot that somebody is at, locked by everybody who changes who may go.
create table dibs_gates (
    sort          text not null,
    name          text not null,
    last_position integer not null default 0,
    held_by       text,
    offer_ends    integer,
    primary key (sort, name)
);
create index dibs_gates_held on dibs_gates (name) where held_by is not null;
create index dibs_gates_offers on dibs_gates (offer_ends) where offer_ends is not null;

create index dibs_jobs_train on dibs_jobs (train, position) where train is not null;
create index dibs_jobs_slot on dibs_jobs (slot, state, position, priority desc, run_at, id)
    where slot is not null;
-- Who started last, and whose key lasts for a time though it has finished.
create index dibs_jobs_slot_token on dibs_jobs (slot, token) where slot is not null;
create index dibs_finished_slot_token on dibs_finished (slot, token) where slot is not null;
create index dibs_finished_unique_key on dibs_finished (unique_key) where unique_until is not null;
