-- Trains and slots (ADR 12). `position` is a job's place at its gate: along a train, or in turn for a slot;
-- null while it has none.
--
-- Altering a table is all or nothing, but only MariaDB knows `add column if not exists`: so that a migration
-- which was interrupted can be run again, a table is altered unless it already has the new columns.
--
-- There are no partial indexes here. `gate` and `place` are null for plain jobs, and neither these nor the
-- other columns of the index change when one is claimed: a plain job writes one entry when it is stored, and
-- that is all. `gate` is the train with a t before it, or the slot with an s. `place` is 0 on a train, for
-- claims to leave alone; in a slot it is ten times the state's number (scheduled 1, blocked 2, ready 3,
-- running 4), and one more once the job was started: who started last is found without an index of tokens.
set @change = (
    select if(
        count(*) > 0,
        'do 0',
        "alter table dibs_jobs
            add column position bigint,
            add column slot_policy varchar(20),
            add column slot_limit integer,
            add column unique_until datetime(6),
            add column gate varchar(701)
                generated always as (coalesce(concat('t', train), concat('s', slot))) stored,
            add column place tinyint
                generated always as (
                    if(train is not null, 0, if(slot is null, null, 10 * state + (token is not null)))
                ) stored,
            add key dibs_jobs_gate (gate, place, position, precedence, run_at)"
    )
    from information_schema.columns known
    where known.table_schema = database() and known.table_name = 'dibs_jobs' and known.column_name = 'gate'
);
prepare change_jobs from @change;
execute change_jobs;
deallocate prepare change_jobs;

-- Keys that last for a time are looked for by locking reads in transactions of the caller's, which also lock
-- the gap before the next entry. The many that have no such key come last, so that gap is not where they grow.
set @change = (
    select if(
        count(*) > 0,
        'do 0',
        "alter table dibs_finished
            add column position bigint,
            add column slot_policy varchar(20),
            add column slot_limit integer,
            add column unique_until datetime(6),
            add column key_is_free boolean generated always as (unique_until is null) stored,
            add key dibs_finished_slot_token (slot, token),
            add key dibs_finished_lasting (key_is_free, unique_key)"
    )
    from information_schema.columns known
    where known.table_schema = database()
      and known.table_name = 'dibs_finished'
      and known.column_name = 'key_is_free'
);
prepare change_finished from @change;
execute change_finished;
deallocate prepare change_finished;

-- A row per train or slot that somebody is at, locked by everybody who changes who may go. `changes` is another
-- number after each of them: a transaction with an old snapshot sees by it whether that still holds.
create table if not exists dibs_gates (
    sort          varchar(5) not null,
    name          varchar(700) not null,
    last_position bigint not null default 0,
    held_by       binary(16),
    offer_ends    datetime(6),
    changes       bigint not null default 0,
    primary key (sort, name),
    key dibs_gates_held (held_by),
    key dibs_gates_offers (offer_ends)
) engine = innodb row_format = dynamic character set utf8mb4
  collate /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;
