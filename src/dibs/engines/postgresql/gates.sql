-- PostgreSQL's words for trains and slots (ADR 12); gates.py says which blocks make an answer.
-- Whoever changes who may go locks the gates first, all at once and in order, in a statement of its own: the
-- next one has a new snapshot, and sees what those before us at the gate have done.

-- name: lock_gates
-- Each by a write: a row that somebody just deleted is made again, with the positions that are in use, and a
-- transaction that still sees an old state of the gate fails. Places are handed out on the way.
insert into dibs_gates as gate (sort, name, last_position)
select
    given.sort,
    given.name,
    given.places + case
        when exists (
            select 1 from dibs_gates known where known.sort = given.sort and known.name = given.name
        ) then 0
        when given.sort = 'train' then coalesce(
            (select max(job.position) from dibs_jobs job where job.train = given.name), 0
        )
        else coalesce((select max(abs(job.position)) from dibs_jobs job where job.slot = given.name), 0)
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
-- The same for who must not wait, also by a write. Gates that are not there are not made.
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
-- A gate that we saw is gone: all who were at it have left. To whom it looks otherwise is in a transaction
-- with an old snapshot, and this lock tells them.
select job.id
from dibs_jobs job
where job.train = any (cast(:trains as text[])) or job.slot = any (cast(:slots as text[]))
for update

-- name: look_at_these
-- Whoever looks at an old snapshot of them fails. Who looks at them as they are locks nothing.
select job.id
from dibs_jobs job
where job.id {in_ids:ids} and current_setting('transaction_isolation') not in ('read committed', 'read uncommitted')
for key share

-- name: make_gates
-- Those that a person deleted by hand; `on conflict` alone would wait for whoever has locked one. Places that are
-- in use are not given again.
insert into dibs_gates (sort, name, last_position)
select
    given.sort,
    given.name,
    case
        when given.sort = 'train' then coalesce(
            (select max(job.position) from dibs_jobs job where job.train = given.name), 0
        )
        else coalesce((select max(abs(job.position)) from dibs_jobs job where job.slot = given.name), 0)
    end
from unnest(cast(:sorts as text[]), cast(:names as text[])) as given (sort, name)
where not exists (
    select 1 from dibs_gates known where known.sort = given.sort and known.name = given.name
)
order by given.sort collate "C", given.name collate "C"
on conflict do nothing

-- name: lock_free_gates
-- For work in the background, which waits for nobody. By a write, too: who was let through or taken away here is
-- not seen by a caller's transaction with an old snapshot.
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

-- name: lock_ready
-- Who is ready may be in the hands of a claimer: this waits for it. What is left stays until we have judged.
select ready.id
from unnest(cast(:names as text[])) as given (name)
cross join lateral (
    select job.id
    from dibs_jobs job
    where job.slot = given.name and job.state = 'ready'
    order by job.position, job.priority desc, job.run_at, job.id
    for update
) ready

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
-- The head goes when it is due, unless the train waits for a person; and the last one leaves no trace.
with gate as materialized (
    select {>gate_name}, gate.held_by
    from dibs_gates gate
    where gate.sort = 'train' and gate.name = any (cast(:names as text[]))
),
head as materialized (
    select gate.name, gate.held_by, first.id, first.state, first.position
    from gate
    left join lateral (
        select job.id, job.state, job.position
        from dibs_jobs job
        where job.train = gate.name and job.position is not null
        order by job.position
        limit 1
    ) first on true
),
ended as materialized (
    select *
    from unnest(
        cast(:ended as uuid[]), cast(:trains as text[]), cast(:positions as bigint[]), cast(:holds as boolean[])
    ) with ordinality as ended (id, train, position, holds, nth)
),
-- Only its head holds a train: nobody may have been ahead of it when it ended.
holder as materialized (
    select distinct on (ended.train) ended.train, ended.id
    from ended
    join head on head.name = ended.train
    where ended.holds
      and head.held_by is null
      and (head.position is null or head.position > ended.position)
      and not exists (
          select 1
          from ended later
          where later.train = ended.train and later.nth > ended.nth and later.position < ended.position
      )
    order by ended.train, ended.nth
),
held as (
    update dibs_gates gate
    set held_by = holder.id
    from holder
    where gate.sort = 'train' and gate.name = holder.train
),
opened as (
    update dibs_jobs job
    set state = case when job.run_at <= {now} then 'ready' else 'scheduled' end
    where job.id = any (
        array(
            select head.id
            from head
            where head.state = 'blocked'
              and head.held_by is null
              and head.name <> all (array(select holder.train from holder))
        )
    )
    returning job.id, job.state, job.queue, job.kind
),
gone as (
    delete from dibs_gates gate
    where gate.sort = 'train'
      and gate.name = any (
          array(
              select head.name
              from head
              where head.id is null
                and head.held_by is null
                and head.name <> all (array(select holder.train from holder))
          )
      )
      and (
          select job.id
          from dibs_jobs job
          where job.train = gate.name collate "default" and job.position is not null
          limit 1
      ) is null
),
{>told_opened}
select opened.id, opened.state, opened.queue, opened.kind
from opened
cross join (select count(*) from told) hint

-- fragment: gate_name
-- Gates are listed by code points, and jobs indexed as the database sorts: compared as it stands, a name
-- would find no index on jobs.
gate.name collate "default" as name

-- fragment: told_opened
-- One hint per line, however many trains or slots went on.
told as (
    select pg_notify('dibs_wake', line.queue || chr(31) || line.kind)
    from (
        select distinct opened.queue, opened.kind from opened where cast(:tell as boolean) and opened.state = 'ready'
    ) line
)

-- name: open_slots
-- Of those in line, in the order of their turns, as many as fit beside those who run: the strictest limit of
-- all who go together counts. The same rules stand in states.fits and states.in_the_way.
with gate as materialized (
    select {>gate_name}, gate.offer_ends
    from dibs_gates gate
    where gate.sort = 'slot' and gate.name = any (cast(:names as text[]))
),
running as materialized (
    select gate.name, job.*
    from gate
    cross join lateral (
        select job.id, job.slot_limit, job.position, job.token, job.cancel_reason is not null as asked
        from dibs_jobs job
        where job.slot = gate.name and job.state = 'running'
        order by job.position, job.priority desc, job.run_at, job.id
    ) job
),
busy as materialized (
    select gate.name, count(running.id) as many, min(running.slot_limit) as strictest
    from gate
    left join running on running.name = gate.name
    group by gate.name
),
-- Two probes: one walk over both states would read all who wait.
ready as materialized (
    select gate.name, job.*
    from gate
    cross join lateral (
        select {>turn}
        from dibs_jobs job
        where job.slot = gate.name and job.state = 'ready'
        order by job.position, job.priority desc, job.run_at, job.id
    ) job
),
first as materialized (
    select gate.name, job.slot_limit
    from gate
    cross join lateral (
        select job.slot_limit
        from dibs_jobs job
        where job.slot = gate.name and job.state = 'blocked' and job.position is not null
        order by job.position, job.priority desc, job.run_at, job.id
        limit 1
    ) job
),
-- No more can go than the first in line allows; and one more, to know who waits.
enough as materialized (
    select
        first.name,
        1 + greatest(
            first.slot_limit, (select max(ready.slot_limit) from ready where ready.name = first.name)
        ) as many
    from first
),
line as materialized (
    select ready.* from ready
    union all
    select enough.name, job.*
    from enough
    cross join lateral (
        select {>turn}
        from dibs_jobs job
        where job.slot = enough.name and job.state = 'blocked' and job.position is not null
        order by job.position, job.priority desc, job.run_at, job.id
        limit enough.many
    ) job
),
ranked as materialized (
    select
        line.*,
        row_number() over turns as nth,
        min(line.slot_limit) over (turns rows unbounded preceding) as strictest
    from line
    window turns as (
        partition by line.name order by line.position, line.priority desc, line.run_at, line.id
    )
),
judged as materialized (
    select
        ranked.*,
        busy.many + ranked.nth <= least(ranked.strictest, busy.strictest) as goes
    from ranked
    join busy on busy.name = ranked.name
),
-- It has not started: somebody more urgent has its turn.
stepped_back as (
    update dibs_jobs job
    set state = 'blocked'
    where job.id = any (array(select judged.id from judged where judged.state = 'ready' and not judged.goes))
    returning job.id, job.state, job.queue, job.kind
),
let_through as (
    update dibs_jobs job
    set state = 'ready'
    where job.id = any (array(select judged.id from judged where judged.state = 'blocked' and judged.goes))
    returning job.id, job.state
),
-- All who may go now are told of, also those who could before: a claimer may just have passed over them,
-- because we had them locked.
opened as materialized (
    select judged.id, 'ready' as state, judged.queue, judged.kind from judged where judged.goes
),
-- Somebody waits behind a ready job: it has so long to be taken. Who mends makes none that led to nothing once more.
offer as materialized (
    select
        gate.name,
        case
            when not (bool_or(judged.goes) and bool_or(not judged.goes)) then null
            when bool_or(judged.goes and judged.state = 'blocked') or (gate.offer_ends is null and not :mends)
                then {now} + cast(:patience as bigint) * interval '1 microsecond'
            else gate.offer_ends
        end as ends
    from gate
    join judged on judged.name = gate.name
    group by gate.name, gate.offer_ends
),
standing as materialized (
    select gate.name, offer.ends
    from gate
    left join offer on offer.name = gate.name
    where (
        select job.id from dibs_jobs job where job.slot = gate.name and job.position is not null limit 1
    ) is not null
),
offered as (
    update dibs_gates gate
    set offer_ends = standing.ends
    from standing
    where gate.sort = 'slot' and gate.name = standing.name and gate.offer_ends is distinct from standing.ends
),
gone as (
    delete from dibs_gates gate
    where gate.sort = 'slot'
      and gate.held_by is null
      and gate.name = any (
          array(select gate.name from gate where gate.name <> all (array(select standing.name from standing)))
      )
),
-- All before the first who waits are ready: their number, and the strictest limit of them and of itself.
next as materialized (
    select distinct on (judged.name)
        judged.name, judged.id, judged.position, judged.nth - 1 as ready, judged.strictest
    from judged
    where not judged.goes
    order by judged.name, judged.nth
),
-- Who pre-empts asks as many to stop as are in its way, those who started first, once those who are ready have
-- started; but nobody who goes before it: a newer job that pre-empts.
staying as materialized (
    select
        running.id,
        next.id as urgent,
        running.position > next.position as is_behind,
        next.ready + row_number() over starts as nth,
        least(next.strictest, min(running.slot_limit) over (starts rows unbounded preceding)) as strictest
    from next
    join running on running.name = next.name
    where next.position < 0 and not running.asked
    window starts as (
        partition by running.name order by running.position > next.position, running.token desc
    )
),
in_the_way as materialized (
    select staying.id, staying.urgent from staying where staying.is_behind and not staying.nth < staying.strictest
),
asked as (
    update dibs_jobs job
    set cancel_reason = 'pre-empted by '
        || (select in_the_way.urgent from in_the_way where in_the_way.id = job.id)
    where job.id = any (array(select in_the_way.id from in_the_way))
      and job.lease_until is not null
      and job.cancel_reason is null
    returning job.worker
),
stopped as (
    select pg_notify('dibs_wake', chr(2) || holder.worker)
    from (select distinct asked.worker from asked) holder
),
{>told_opened}
-- The hints come first: joined to who has moved, they would not be given when nobody has.
select moved.id, moved.state, moved.queue, moved.kind
from (
    select count(*) as hints
    from (select told.pg_notify from told union all select stopped.pg_notify from stopped) said
) given
left join (
    select opened.id, opened.state, opened.queue, opened.kind from opened
    union all
    select stepped_back.id, stepped_back.state, stepped_back.queue, stepped_back.kind from stepped_back
) moved on given.hints >= 0

-- fragment: turn
job.id, job.state, job.position, job.priority, job.run_at, job.slot_limit, job.queue, job.kind

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
-- Jobs with a unique key, or with a place at a gate: those are blocked until it is opened. Whoever has the key is
-- not touched: a no-op update would lock its row until the caller's commit, and a running job with a row that
-- is locked loses its lease.
insert into dibs_jobs (
    {>new_columns}, unique_until, train, slot, slot_policy, slot_limit, position
)
select
    given.id,
    given.kind,
    given.queue,
    given.args,
    given.priority,
    case
        when given.train is not null then 'blocked'
        when due.at > {moment} then 'scheduled'
        when given.slot is not null then 'blocked'
        else 'ready'
    end,
    given.max_attempts,
    due.at,
    {moment},
    given.unique_key,
    given.on_cancelled,
    given.on_failed,
    given.pipeline_id,
    given.parent_id,
    given.tags,
    given.meta,
    {moment} + given.unique_for * interval '1 microsecond',
    given.train,
    given.slot,
    given.slot_policy,
    given.slot_limit,
    given.position
from unnest(
    cast(:id as uuid[]),
    cast(:kind as text[]),
    cast(:queue as text[]),
    cast(:args as text[]),
    cast(:priority as smallint[]),
    cast(:run_at as timestamptz[]),
    cast(:delay as bigint[]),
    cast(:max_attempts as integer[]),
    cast(:unique_key as text[]),
    cast(:on_cancelled as text[]),
    cast(:on_failed as text[]),
    cast(:pipeline_id as uuid[]),
    cast(:parent_id as uuid[]),
    cast(:tags as text[]),
    cast(:meta as text[]),
    cast(:train as text[]),
    cast(:slot as text[]),
    cast(:slot_policy as text[]),
    cast(:slot_limit as integer[]),
    cast(:unique_for as bigint[]),
    cast(:position as bigint[])
) as given (
    id, kind, queue, args, priority, run_at, delay, max_attempts, unique_key,
    on_cancelled, on_failed, pipeline_id, parent_id, tags, meta,
    train, slot, slot_policy, slot_limit, unique_for, position
)
{>due}
where not exists (select 1 from dibs_jobs stored where stored.id = given.id)
  and not exists (select 1 from dibs_finished finished where finished.id = given.id)
order by given.unique_key collate "C", given.id
on conflict (unique_key) where unique_key is not null do nothing
returning id, id as holder, state, run_at, enqueued_at, train, slot

-- name: holders
-- Who has the keys of these jobs now; of those that are known by their ids nobody is.
select given.id, job.id as holder, job.state, job.run_at, job.enqueued_at, job.train, job.slot
from unnest(cast(:ids as uuid[]), cast(:keys as text[])) as given (id, key)
left join dibs_jobs job on job.unique_key = given.key
where not exists (select 1 from dibs_jobs stored where stored.id = given.id)
  and not exists (select 1 from dibs_finished finished where finished.id = given.id)

-- name: forget_kept_keys
-- Another statement, for the same reason as below: who finished meanwhile may keep its key for a time.
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

-- name: take_back
-- Dropped: those who were at the slot before leave no room.
with others as materialized (
    select member.id, member.state, member.slot_limit, member.turn
    from unnest(array['running', 'ready', 'blocked', 'scheduled']) as standing (state)
    cross join lateral (
        select
            job.id,
            job.state,
            job.slot_limit,
            row(job.position, -job.priority, job.run_at, job.id) as turn
        from dibs_jobs job
        where job.slot = :name
          and job.state = standing.state
          and job.position is not null
          and job.id <> all (cast(:later as uuid[]))
        order by job.position, job.priority desc, job.run_at, job.id
        limit cast(:most as bigint)
    ) member
),
dropped as (
    delete from dibs_jobs job
    where job.id = :id and (select count(*) from others) >= least(
        cast(:most as bigint), (select min(others.slot_limit) from others)
    )
    returning job.id
)
select others.id as holder
from others
cross join dropped
order by others.state <> 'running', others.turn
limit 1

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
-- Arguments and time of a job that waits; where that leads to is for its gate to say, if it has one.
update dibs_jobs job
set
    args = given.args,
    run_at = due.at,
    state = case
        when job.train is not null then 'blocked'
        when due.at > {moment} then 'scheduled'
        when job.slot is not null then 'blocked'
        else 'ready'
    end
from (
    select
        cast(:args as text) as args, cast(:run_at as timestamptz) as run_at, cast(:delay as bigint) as delay
) given
{>due}
where job.id = :holder and job.state in ('scheduled', 'blocked', 'ready')
returning job.state

-- name: overtake
-- A job that is behind its slot may be claimed by name while there is room among those who run.
update dibs_jobs job
set state = 'ready'
where job.id = cast(:job as uuid)
  and job.state = 'blocked'
  and job.position is not null
  and (select count(*) from dibs_jobs other where other.slot = job.slot and other.state = 'running') < least(
      job.slot_limit,
      (select min(other.slot_limit) from dibs_jobs other where other.slot = job.slot and other.state = 'running')
  )
returning job.id

-- name: behind_slot
select job.slot
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
-- Who comes from another store may be before who is ready here: that is the first but for them.
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

-- name: gates_after
select gate.sort, gate.name
from dibs_gates gate
where cast(:after_sort as text) is null
   or (gate.sort, gate.name) > (cast(:after_sort as text), cast(:after_name as text))
order by gate.sort, gate.name
limit :limit
for update skip locked

-- name: drop_stale_holds
update dibs_gates gate
set held_by = null
where gate.sort = 'train'
  and gate.name = any (cast(:names as text[]))
  and gate.held_by is not null
  and not exists (select 1 from dibs_finished job where job.id = gate.held_by)

-- name: restless_slots
-- Slots with a job that is due, and those whose offer is over.
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

-- name: pass_on
-- Who is ready and gives way goes behind all who had no turn yet. The same rule stands in states.giving_way.
with over as materialized (
    select gate.name as key, {>gate_name}, gate.last_position
    from dibs_gates gate
    where gate.sort = 'slot' and gate.name = any (cast(:names as text[])) and gate.offer_ends <= {now}
),
passed as materialized (
    select
        job.id,
        over.key,
        over.last_position + row_number() over (
            partition by over.key order by job.position, job.priority desc, job.run_at, job.id
        ) as position
    from over
    cross join lateral (
        select ready.id, ready.position, ready.priority, ready.run_at, ready.queue, ready.kind
        from dibs_jobs ready
        where ready.slot = over.name and ready.state = 'ready'
        order by ready.position, ready.priority desc, ready.run_at, ready.id
    ) job
    where (
        select count(*) = :looked_at or bool_or((waiting.queue, waiting.kind) <> (job.queue, job.kind))
        from (
            select blocked.queue, blocked.kind
            from dibs_jobs blocked
            where blocked.slot = over.name and blocked.state = 'blocked' and blocked.position is not null
            order by blocked.position, blocked.priority desc, blocked.run_at, blocked.id
            limit :looked_at
        ) waiting
    )
),
ended as (
    update dibs_gates gate
    set
        offer_ends = null,
        last_position = greatest(
            gate.last_position, (select max(passed.position) from passed where passed.key = gate.name)
        )
    where gate.sort = 'slot' and gate.name = any (array(select over.key from over))
)
update dibs_jobs job
set position = (select passed.position from passed where passed.id = job.id)
where job.id = any (array(select passed.id from passed))
returning job.slot as name

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

-- name: recover
update dibs_jobs
set
    state = case when slot is null then 'ready' else 'blocked' end,
    attempts = 0,
    worker = null,
    lease_until = null,
    cancel_reason = null,
    errors = :errors
where id = cast(:job as uuid) and token = :token and lease_until <= {now_minus:stale_after}
returning id

-- name: delete_live
delete from dibs_jobs
where id {in_ids:ids} and state <> 'running'
returning id

-- name: prune
-- Not who holds a train, nor whose key still lasts.
delete from dibs_finished
where id = any (
    array(
        select old.id
        from dibs_finished old
        where old.id < :before
          and old.finished_at < {now_minus:older_than}
          and old.state {in_texts:states}
          and (old.unique_until is null or old.unique_until <= {now})
          and not exists (
              select 1
              from dibs_gates gate
              where gate.sort = 'train' and gate.name = old.train and gate.held_by = old.id
          )
        order by old.id
        limit :limit
        for update of old skip locked
    )
)
returning id

-- name: walk_by_index
-- For this transaction. A planner that takes the table for small reads all of it at each step: 2 s for 500 names
-- among 25,000 jobs, else 4 ms.
select set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true)

-- name: slots_named
-- Names that jobs have, one after another: one step into the index for each, however many jobs there are. Whose
-- gate is not there, though somebody has a place, was deleted by hand.
with recursive named (name, nth) as (
    (
        select job.slot, 1
        from dibs_jobs job
        where job.slot > cast(:after as text)
        order by job.slot, job.state, job.position, job.priority desc, job.run_at, job.id
        limit 1
    )
    union all
    select following.slot, named.nth + 1
    from named
    cross join lateral (
        select job.slot
        from dibs_jobs job
        where job.slot > named.name
        order by job.slot, job.state, job.position, job.priority desc, job.run_at, job.id
        limit 1
    ) following
    where named.nth < :limit
)
select
    named.name,
    not exists (select 1 from dibs_gates gate where gate.sort = 'slot' and gate.name = named.name collate "C")
    and exists (select 1 from dibs_jobs job where job.slot = named.name and job.position is not null) as is_lost
from named
order by named.nth

-- name: trains_named
with recursive named (name, nth) as (
    (
        select job.train, 1
        from dibs_jobs job
        where job.train > cast(:after as text)
        order by job.train, job.position
        limit 1
    )
    union all
    select following.train, named.nth + 1
    from named
    cross join lateral (
        select job.train
        from dibs_jobs job
        where job.train > named.name
        order by job.train, job.position
        limit 1
    ) following
    where named.nth < :limit
)
select
    named.name,
    not exists (select 1 from dibs_gates gate where gate.sort = 'train' and gate.name = named.name collate "C")
    and exists (select 1 from dibs_jobs job where job.train = named.name and job.position is not null) as is_lost
from named
order by named.nth

-- name: gates
select
    gate.name,
    coalesce(
        gate.held_by,
        case gate.sort
            when 'train' then (
                select job.id
                from dibs_jobs job
                where job.train = gate.name collate "default" and job.position is not null
                order by job.position
                limit 1
            )
            else coalesce(
                (
                    select job.id
                    from dibs_jobs job
                    where job.slot = gate.name collate "default" and job.state = 'running'
                    order by job.token desc
                    limit 1
                ),
                (
                    select job.id
                    from dibs_jobs job
                    where job.slot = gate.name collate "default"
                      and job.state in ('ready', 'blocked')
                      and job.position is not null
                    order by job.position, job.priority desc, job.run_at, job.id
                    limit 1
                )
            )
        end
    ) as head,
    cast(gate.held_by is not null as integer) + case gate.sort
        when 'train' then (
            select count(*)
            from dibs_jobs job
            where job.train = gate.name collate "default" and job.position is not null
        )
        else (
            select count(*)
            from dibs_jobs job
            where job.slot = gate.name collate "default" and job.position is not null
        )
    end as length,
    gate.held_by is not null as held
from dibs_gates gate
where gate.sort = :sort
  and (cast(:names as text[]) is null or gate.name {in_texts:names})
  and (cast(:after as text) is null or gate.name > cast(:after as text))
  and (gate.held_by is not null or not cast(:held as boolean))
order by gate.name
limit :limit

-- name: current
-- Who started last, running or not.
select distinct on (started.slot) started.slot, started.id, started.token
from unnest(cast(:slots as text[])) as given (slot)
cross join lateral (
    (
        select job.slot, job.id, job.token
        from dibs_jobs job
        where job.slot = given.slot and job.token is not null
        order by job.token desc
        limit 1
    )
    union all
    (
        select job.slot, job.id, job.token
        from dibs_finished job
        where job.slot = given.slot and job.token is not null
        order by job.token desc
        limit 1
    )
) started
order by started.slot, started.token desc

-- name: upcoming
select
    {>overdue} as overdue,
    exists (select 1 from dibs_jobs ready where ready.state = 'ready') as ready,
    {>next_due} as next_due,
    (select min(held.lease_until) from dibs_jobs held where held.state = 'running') as next_lease,
    {now} as now

-- fragment: next_due
least(
        (select min(due.run_at) from dibs_jobs due where due.state = 'scheduled'),
        (select min(gate.offer_ends) from dibs_gates gate)
    )

-- fragment: overdue
-- By the first of each index. Asked whether there is one, the planner may go through the table: with many
-- blocked jobs it takes the past for common, also among scheduled ones.
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
