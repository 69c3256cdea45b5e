-- PostgreSQL's blocks for trains and slots (ADR 12). jobs/gates.py decides, gates.py says which blocks make an
-- answer. A plan that changes which jobs may go locks the gates first, all at once and in order, in a statement of
-- its own: the next statement has a new snapshot, and sees what the transactions before it at the gate have done.

-- name: lock_gates
-- Each by a write: a row that was just deleted is made again, with the positions that are in use, and a transaction
-- that still sees an old state of the gate fails. Positions are reserved on the way.
insert into dibs_gates as gate (sort, name, last_position)
select
    given.sort,
    given.name,
    given.places + case
        when exists (
            select 1 from dibs_gates known where known.sort = given.sort and known.name = given.name
        ) then 0
        else {>positions_in_use}
    end
from unnest(
    cast(:sorts as text[]), cast(:names as text[]), cast(:places as bigint[])
) as given (sort, name, places)
order by given.sort collate "C", given.name collate "C"
on conflict (sort, name) do update
set last_position = gate.last_position + excluded.last_position
returning
    gate.sort,
    gate.name,
    gate.last_position,
    gate.held_by,
    gate.xmax = 0 and exists (
        select 1 from dibs_gates known where known.sort = gate.sort and known.name = gate.name
    ) as was_gone

-- name: lock_if_free
-- The same without waiting, also by a write. Gates that are not there are not made.
with given as materialized (
    select given.sort, given.name
    from unnest(cast(:sorts as text[]), cast(:names as text[])) as given (sort, name)
),
free as materialized (
    select gate.sort, gate.name
    from dibs_gates gate
    where (gate.sort, gate.name) in (select given.sort, given.name from given)
    order by gate.sort, gate.name
    for update skip locked
),
locked as (
    update dibs_gates gate
    set last_position = gate.last_position
    from free
    where gate.sort = free.sort and gate.name = free.name
    returning gate.sort, gate.name, gate.last_position, gate.held_by
)
select
    given.sort,
    given.name,
    locked.last_position,
    locked.held_by,
    locked.name is not null as is_free,
    exists (
        select 1 from dibs_gates known where known.sort = given.sort and known.name = given.name
    ) as is_there
from given
left join locked on locked.sort = given.sort and locked.name = given.name

-- name: wait_briefly
-- In this transaction, for any lock.
select set_config('lock_timeout', '1000', true)

-- name: look_at_members
-- A gate that this transaction saw is gone, and so are its jobs. If they are still there, the snapshot is old: this
-- lock then fails with 40001.
select job.id
from dibs_jobs job
where job.train = any (cast(:trains as text[])) or job.slot = any (cast(:slots as text[]))
for update

-- name: look_at_these
-- Fails with 40001 if the caller's snapshot of these jobs is old. At READ COMMITTED it locks nothing.
select job.id
from dibs_jobs job
where job.id {in_ids:ids} and {>is_above_read_committed}
for key share

-- name: make_gates
-- Gates that an operator deleted; `on conflict` alone would wait for a transaction that has locked one. Positions
-- that are in use are not given again.
insert into dibs_gates (sort, name, last_position)
select
    given.sort,
    given.name,
    {>positions_in_use}
from unnest(cast(:sorts as text[]), cast(:names as text[])) as given (sort, name)
where not exists (
    select 1 from dibs_gates known where known.sort = given.sort and known.name = given.name
)
order by given.sort collate "C", given.name collate "C"
on conflict do nothing

-- name: lock_free_gates
-- For upkeep, which skips locked gates. By a write, too: a caller's transaction with an old snapshot does not see
-- the jobs that are let through or taken away here.
with free as materialized (
    select gate.sort, gate.name
    from dibs_gates gate
    where (gate.sort, gate.name) in (
        select given.sort, given.name
        from unnest(cast(:sorts as text[]), cast(:names as text[])) as given (sort, name)
    )
    order by gate.sort, gate.name
    for update skip locked
)
update dibs_gates gate
set last_position = gate.last_position
from free
where gate.sort = free.sort and gate.name = free.name
returning gate.sort, gate.name

-- name: gates_of
-- The gates of these jobs, live or finished. They never change, so no lock is needed to know them.
select job.train, job.slot
from dibs_jobs job
where job.id {in_ids:ids} and (job.train is not null or job.slot is not null)
union
select job.train, job.slot
from dibs_finished job
where job.id {in_ids:ids} and (job.train is not null or job.slot is not null)

-- name: gates_of_keys
select distinct job.train, job.slot
from dibs_jobs job
where job.unique_key {in_texts:keys} and (job.train is not null or job.slot is not null)

-- name: open_trains
-- The rule is `open_train` of jobs/gates.py, repeated here so that a train goes on in one statement.
with ended as materialized (
    select *
    from unnest(
        cast(:ended as uuid[]), cast(:trains as text[]), cast(:positions as bigint[])
    ) as ended (id, train, position)
),
train as materialized (
    select
        {>gate_name},
        head.id,
        head.state,
        case
            when gate.held_by is not null then gate.held_by
            when head.position is null or head.position > ended.position then ended.id
        end as held_by
    from dibs_gates gate
    left join ended on ended.train = gate.name
    left join lateral (
        select job.id, job.state, job.position
        from dibs_jobs job
        where job.train = gate.name collate "default" and job.position is not null
        order by job.position
        limit 1
    ) head on true
    where gate.sort = 'train' and gate.name = any (cast(:names as text[]))
),
held as (
    update dibs_gates gate
    set held_by = ended.id
    from ended
    where gate.sort = 'train'
      and gate.name = ended.train
      and ended.id = any (array(select train.held_by from train))
),
opened as (
    update dibs_jobs job
    set state = case when job.run_at <= {now} then 'ready' else 'scheduled' end
    where job.id = any (
        array(select train.id from train where train.state = 'blocked' and train.held_by is null)
    )
    returning job.id, job.state, job.queue, job.kind
),
gone as (
    delete from dibs_gates gate
    where gate.sort = 'train'
      and gate.name = any (array(select train.name from train where train.id is null and train.held_by is null))
),
-- One hint per queue and kind, however many trains went on.
told as (
    select pg_notify('dibs_wake', pair.queue || chr(31) || pair.kind)
    from (
        select distinct opened.queue, opened.kind from opened where cast(:tell as boolean) and opened.state = 'ready'
    ) pair
)
select opened.id, opened.state, opened.queue, opened.kind
from opened
cross join (select count(*) from told) hint

-- fragment: gate_name
-- Gates are sorted by code points, jobs as the database sorts: without the collation of jobs a name would find no
-- index on them.
gate.name collate "default" as name

-- name: slots
-- The ready and the running jobs of these slots, and the first of the blocked ones. A claimer may have locked a
-- ready job: the lock waits for it and returns the job as it is then.
with gate as materialized (
    select
        {>gate_name},
        gate.offer_ends is not null as is_offered,
        (
            select job.id
            from dibs_jobs job
            where job.slot = gate.name collate "default" and job.position is not null
            limit 1
        ) is not null as is_used
    from dibs_gates gate
    where gate.sort = 'slot' and gate.name = any (cast(:names as text[]))
),
ready as materialized (
    select job.slot, {>at_gate}
    from dibs_jobs job
    where job.id = any (
        array(
            select ready.id
            from gate
            cross join lateral (
                select job.id from dibs_jobs job where job.slot = gate.name and job.state = 'ready' order by {>turn}
            ) ready
        )
    )
    order by job.id
    for update
),
member as materialized (
    select ready.* from ready
    union all
    select gate.name, running.*
    from gate
    cross join lateral (
        select {>at_gate} from dibs_jobs job where job.slot = gate.name and job.state = 'running' order by {>turn}
    ) running
    union all
    select gate.name, blocked.*
    from gate
    cross join lateral (
        select {>at_gate}
        from dibs_jobs job
        where job.slot = gate.name and {>waits}
        order by {>turn}
        limit {>enough}
    ) blocked
)
select gate.name, gate.is_offered, gate.is_used, member.*
from gate
left join member on member.slot = gate.name

-- fragment: enough
-- The first blocked job allows so many to go, and one more shows whether a job waits.
greatest(
            cast(:waiting as bigint),
            1 + (
                select job.slot_limit
                from dibs_jobs job
                where job.slot = gate.name and {>waits}
                order by {>turn}
                limit 1
            )
        )

-- fragment: at_gate
job.id, job.state, job.position, job.slot_limit, job.priority, job.run_at, job.queue, job.kind, job.token,
    job.cancel_reason is not null as asked

-- fragment: turn
job.position, job.priority desc, job.run_at, job.id

-- fragment: waits
job.state = 'blocked' and job.position is not null

-- name: open_slots
-- Applies what jobs/gates.py has decided.
with let_through as (
    update dibs_jobs set state = 'ready' where id {in_ids:let_through}
),
sent_back as (
    update dibs_jobs set state = 'blocked' where id {in_ids:sent_back}
),
asked as (
    update dibs_jobs job
    set cancel_reason = (cast(:reasons as text[]))[array_position(cast(:asked as uuid[]), job.id)]
    where job.id {in_ids:asked} and job.lease_until is not null and job.cancel_reason is null
    returning job.worker
),
offered as (
    update dibs_gates gate
    set offer_ends = case
        when gate.name {in_texts:offered} then {now} + cast(:micros as bigint) * interval '1 microsecond'
    end
    where gate.sort = 'slot' and (gate.name {in_texts:offered} or gate.name {in_texts:not_offered})
),
gone as (
    delete from dibs_gates gate where gate.sort = 'slot' and gate.name {in_texts:gone} and gate.held_by is null
),
hint as (
    select unnest(cast(:wake as text[])) as text
    union
    select chr(2) || asked.worker from asked
)
select pg_notify('dibs_wake', hint.text) from hint

-- name: settle_at_gates
with
{>settling}
select
    ended.id,
    {>ended_as} as state,
    ended.train,
    ended.position,
    ended.on_cancelled,
    ended.on_failed
from ended
join given on given.id = ended.id
union all
select returned.id, null, null, null, null, null
from returned

-- fragment: ended_as
case when given.state in ('succeeded', 'failed', 'cancelled') then given.state else 'cancelled' end

-- name: enqueue_placed
-- Jobs with a unique key or a gate; the latter are blocked until it is opened. The job that has a key is not touched:
-- an update without effect would lock its row until the caller's commit, and a running job with a locked row loses
-- its lease.
insert into dibs_jobs (
    {>new_columns}, unique_until, train, slot, slot_policy, slot_limit, position
)
select
    {>new_values:placed},
    {moment} + given.unique_for * interval '1 microsecond',
    given.train,
    given.slot,
    given.slot_policy,
    given.slot_limit,
    given.position
from unnest(
    {>new_arrays},
    cast(:train as text[]),
    cast(:slot as text[]),
    cast(:slot_policy as text[]),
    cast(:slot_limit as integer[]),
    cast(:unique_for as bigint[]),
    cast(:position as bigint[])
) as given (
    {>new_names},
    train, slot, slot_policy, slot_limit, unique_for, position
)
{>due}
where not exists (select 1 from dibs_jobs stored where stored.id = given.id)
  and not exists (select 1 from dibs_finished finished where finished.id = given.id)
order by given.unique_key collate "C", given.id
on conflict (unique_key) where unique_key is not null do nothing
returning id, id as holder, state, run_at, enqueued_at, train, slot

-- fragment: placed
{>at_its_gate:given}

-- name: holders
-- The jobs that have these unique keys now; nothing for a job that is known by its id.
select given.id, job.id as holder, job.state, job.run_at, job.enqueued_at, job.train, job.slot
from unnest(cast(:ids as uuid[]), cast(:keys as text[])) as given (id, key)
left join dibs_jobs job on job.unique_key = given.key
where not exists (select 1 from dibs_jobs stored where stored.id = given.id)
  and not exists (select 1 from dibs_finished finished where finished.id = given.id)

-- name: forget_kept_keys
-- A statement of its own, to see a job that has finished meanwhile and keeps its key for a time.
with kept as materialized (
    select
        job.id,
        (
            select finished.id
            from dibs_finished finished
            where finished.unique_key = job.unique_key
              and finished.unique_until > {now}
              and finished.id <> job.id
            limit 1
        ) as holder
    from dibs_jobs job
    where job.id {in_ids:ids}
),
gone as (
    delete from dibs_jobs job
    where job.id = any (array(select kept.id from kept where kept.holder is not null))
)
select kept.id, kept.holder
from kept
where kept.holder is not null

-- name: slot_members
-- The first jobs of a slot in each state, without these.
select member.*
from unnest(array['running', 'ready', 'blocked', 'scheduled']) as standing (state)
cross join lateral (
    select {>at_gate}
    from dibs_jobs job
    where job.slot = :name
      and job.state = standing.state
      and job.position is not null
      and job.id <> all (cast(:later as uuid[]))
    order by {>turn}
    limit cast(:most as bigint)
) member

-- name: supersede
with waiting as materialized (
    select job.id
    from dibs_jobs job
    where job.slot = :name
      and job.state in ('scheduled', 'blocked', 'ready')
      and job.position is not null
      and job.id <> all (cast(:later as uuid[]))
    order by job.id
    for update
),
ended as (
    delete from dibs_jobs job
    where job.id = any (array(select waiting.id from waiting))
    returning job.*
),
{>moved_cancelled}
select ended.id from ended

-- name: replace
-- A waiting job gets other arguments and another time; its gate, if it has one, decides what follows.
update dibs_jobs job
set
    args = given.args,
    run_at = due.at,
    state = {>at_its_gate:job}
from (
    select
        cast(:args as text) as args, cast(:run_at as timestamptz) as run_at, cast(:delay as bigint) as delay
) given
{>due}
where job.id = :holder and job.state in ('scheduled', 'blocked', 'ready')
returning job.state

-- name: overtake
update dibs_jobs job
set state = 'ready'
where job.id = cast(:job as uuid) and {>waits}
returning job.id

-- name: behind_slot
select job.slot, job.slot_limit
from dibs_jobs job
where job.id = cast(:job as uuid) and job.slot is not null and job.position is not null

-- name: let_go
update dibs_gates gate
set held_by = null
where gate.sort = 'train' and gate.name = any (cast(:names as text[])) and gate.held_by {in_ids:ids}
returning gate.sort, gate.name

-- name: place
update dibs_jobs job
set position = given.position
from unnest(cast(:ids as uuid[]), cast(:positions as bigint[])) as given (id, position)
where job.id = given.id

-- name: close_trains
-- A job from another store may be before the one that is ready here.
update dibs_jobs job
set state = 'blocked'
where job.id = any (
    array(
        select waiting.id
        from unnest(cast(:names as text[])) as given (name)
        cross join lateral (
            select head.id
            from dibs_jobs head
            where head.train = given.name and head.state in ('ready', 'scheduled')
            for update
        ) waiting
    )
)

-- name: raise_positions
update dibs_gates gate
set last_position = greatest(gate.last_position, most.position)
from (
    select given.sort, given.name, max(given.position) as position
    from unnest(
        cast(:sorts as text[]), cast(:names as text[]), cast(:positions as bigint[])
    ) as given (sort, name, position)
    group by given.sort, given.name
) most
where gate.sort = most.sort and gate.name = most.name

-- name: release
update dibs_gates gate
set held_by = null
from (
    select held.name, held.held_by
    from dibs_gates held
    where held.sort = 'train' and held.name = :name
    for update
) before
where gate.sort = 'train' and gate.name = before.name
returning before.held_by is not null as was_held

-- name: drop_stale_holds
update dibs_gates gate
set held_by = null
where gate.sort = 'train'
  and gate.name = any (cast(:names as text[]))
  and gate.held_by is not null
  and not exists (select 1 from dibs_finished job where job.id = gate.held_by)

-- name: restless_slots
-- Slots with a job that is due, and slots with an offer that is over.
select due.slot as name, false as is_over
from (
    select job.slot
    from dibs_jobs job
    where job.state = 'scheduled' and job.run_at <= {now} and job.slot is not null
    order by job.run_at
    limit :limit
) due
union
(
    select gate.name, true
    from dibs_gates gate
    where gate.offer_ends <= {now}
    order by gate.offer_ends
    limit :limit
)

-- name: stage_at_slots
with due as materialized (
    select job.id
    from dibs_jobs job
    where job.state = 'scheduled' and job.run_at <= {now} and job.slot = any (cast(:names as text[]))
    order by job.run_at
    limit :limit
    for update skip locked
)
update dibs_jobs job
set state = 'blocked'
where job.id = any (array(select due.id from due))
returning job.id

-- name: end_offers
update dibs_gates gate
set offer_ends = null
where gate.sort = 'slot' and gate.name {in_texts:names} and gate.offer_ends <= {now}
returning gate.name, gate.last_position

-- name: expired_at_gates
select distinct dead.train, dead.slot
from (
    select job.train, job.slot
    from dibs_jobs job
    where job.state = 'running'
      and job.lease_until <= {now}
      and (job.train is not null or job.slot is not null)
    order by job.lease_until
    limit :limit
) dead

-- name: sweep_at_gates
with expired as materialized (
    select job.id, {>swept_to} as state
    from dibs_jobs job
    where job.state = 'running'
      and job.lease_until <= {now}
      and (job.train = any (cast(:trains as text[])) or job.slot = any (cast(:slots as text[])))
    order by job.lease_until
    limit :limit
    for update skip locked
),
{>sweeping}
select
    returned.id, returned.kind, returned.queue, returned.token, returned.attempts, 'ready' as state,
    null as train, null as position, null as on_cancelled, null as on_failed
from returned
union all
select
    ended.id, ended.kind, ended.queue, ended.token, ended.attempts, ended.state,
    ended.train, ended.position, ended.on_cancelled, ended.on_failed
from ended

-- name: stage
with due as materialized (
    select job.id
    from dibs_jobs job
    where job.state = 'scheduled' and job.run_at <= {now} and job.slot is null
    order by job.run_at
    limit :limit
    for update skip locked
)
update dibs_jobs job
set state = 'ready'
where job.id = any (array(select due.id from due))
returning job.id

-- name: walk_by_index
-- For this transaction: a planner that takes the table for small reads all of it at each step, 2 s for 500 names
-- among 25,000 jobs instead of 4 ms.
select set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true)

-- name: current
-- The job of each slot that started last, running or not.
select distinct on (started.slot) started.slot, started.id, started.token
from unnest(cast(:slots as text[])) as given (slot)
cross join lateral (
    {>latest_in:dibs_jobs}
    union all
    {>latest_in:dibs_finished}
) started
order by started.slot, started.token desc

-- fragment: latest_in
(
        select job.slot, job.id, job.token
        from $1 job
        where job.slot = given.slot and job.token is not null
        order by job.token desc
        limit 1
    )

-- fragment: next_due
least(
        (select min(due.run_at) from dibs_jobs due where due.state = 'scheduled'),
        (select min(gate.offer_ends) from dibs_gates gate)
    )

-- fragment: overdue
-- Reads the first entry of each index. With `exists` the planner may read the table: many blocked jobs make it
-- think that times in the past are common, also among scheduled jobs.
(
        coalesce(
            (select due.run_at from dibs_jobs due where due.state = 'scheduled' order by due.run_at limit 1)
                <= {now},
            false
        )
        or coalesce(
            (
                select dead.lease_until
                from dibs_jobs dead
                where dead.state = 'running'
                order by dead.lease_until
                limit 1
            ) <= {now},
            false
        )
        or exists (select 1 from dibs_gates offer where offer.offer_ends <= {now})
    )
-- fragment: positions_in_use
case
    when given.sort = 'train' then coalesce(
        (select max(job.position) from dibs_jobs job where job.train = given.name), 0
    )
    else coalesce((select max(abs(job.position)) from dibs_jobs job where job.slot = given.name), 0)
end
