-- PostgreSQL's own words: many rows per statement, row locks that are skipped and not waited for.
-- READ COMMITTED. A statement sees one snapshot; what it then locks is checked again by the server
-- against the newest version of the row, so every guard stands in the statement that writes.

-- name: enqueue
-- For ids that nobody can have stored before. A violated key makes the whole batch try again with
-- `enqueue_again`. The hint to waiting workers rides along.
with stored as (
    insert into dibs_jobs ({>new_columns})
    {>new_rows}
    returning id, true as is_new, state, run_at, enqueued_at
),
told as (
    select pg_notify('dibs_wake', queue) from unnest(cast(:wake as text[])) as queue
)
select stored.*
from stored
cross join (select count(*) from told) hint

-- name: wake
select pg_notify('dibs_wake', queue) as told from unnest(cast(:wake as text[])) as queue

-- name: enqueue_again
insert into dibs_jobs ({>new_columns})
{>new_rows}
on conflict (id) do nothing
returning id, true as is_new, state, run_at, enqueued_at

-- name: enqueue_unique
-- The no-op update locks whoever has the key and so always answers a row: with `do nothing` and a
-- look afterwards, a holder that finishes in between leaves neither a new job nor an old one.
insert into dibs_jobs ({>new_columns})
{>new_rows}
where not exists (select 1 from dibs_jobs stored where stored.id = given.id)
  and not exists (select 1 from dibs_finished finished where finished.id = given.id)
on conflict (unique_key) where unique_key is not null do update
set unique_key = excluded.unique_key
returning id as holder, unique_key, state, run_at, enqueued_at

-- name: enqueue_forget_finished
-- A second statement, because it must see what finished while the insert waited for its key.
delete from dibs_jobs job
using dibs_finished finished
where job.id {in_ids:ids} and finished.id = job.id
returning job.id

-- fragment: new_columns
id, kind, queue, args, priority, state, max_attempts, run_at, enqueued_at, unique_key,
    on_cancelled, on_failed, pipeline_id, parent_id, tags, meta

-- fragment: new_rows
select
    given.id,
    given.kind,
    given.queue,
    given.args,
    given.priority,
    case when due.at <= {moment} then 'ready' else 'scheduled' end,
    given.max_attempts,
    due.at,
    {moment},
    given.unique_key,
    given.on_cancelled,
    given.on_failed,
    given.pipeline_id,
    given.parent_id,
    given.tags,
    given.meta
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
    cast(:meta as text[])
) as given (
    id, kind, queue, args, priority, run_at, delay, max_attempts, unique_key,
    on_cancelled, on_failed, pipeline_id, parent_id, tags, meta
)
cross join lateral (
    select coalesce(given.run_at, {moment} + coalesce(given.delay, 0) * interval '1 microsecond') as at
) due

-- name: chain
-- Children of what the same transaction has settled. One whose key is taken is not added.
insert into dibs_jobs ({>new_columns})
{>new_rows}
where not exists (select 1 from dibs_finished finished where finished.id = given.id)
on conflict do nothing

-- name: claim
-- Up to :limit ready jobs of the open lines, for one worker, in one statement.
with recursive
{>lines},
{>share},
{>picked},
{>taken}
select {>header}, {job_columns:taken}
from (select 1) once
left join taken on true
order by taken.priority desc, taken.run_at, taken.id

-- name: exchange
-- Settle what is done and claim what is next: one round trip, one commit.
with recursive
{>settling},
{>lines},
{>share},
{>picked},
{>taken}
select
    {>header},
    case
        when row_number() over (order by taken.priority desc, taken.run_at, taken.id) = 1
        then array(select ended.id from ended union all select returned.id from returned)
    end as settled,
    {job_columns:taken}
from (select 1) once
left join taken on true
order by taken.priority desc, taken.run_at, taken.id

-- fragment: lines
-- The distinct (queue, kind) of ready jobs, found by jumping through the claim index: whatever lies
-- in a paused queue or is of another kind costs one jump, not one step per job.
walked (queue, kind) as (
    (
        select ready.queue, ready.kind
        from dibs_jobs ready
        where cast(:walk as boolean) and ready.state = 'ready'
        order by ready.queue, ready.kind
        limit 1
    )
    union all
    select next.queue, next.kind
    from walked
    cross join lateral (
        select ready.queue, ready.kind
        from dibs_jobs ready
        where ready.state = 'ready' and (ready.queue, ready.kind) > (walked.queue, walked.kind)
        order by ready.queue, ready.kind
        limit 1
    ) next
),
named (queue, kind) as (
    select queue, kind
    from unnest(cast(:queues as text[])) as queue
    cross join unnest(cast(:kinds as text[])) as kind
    where not cast(:walk as boolean)
    union all
    select walked.queue, walked.kind
    from walked
    where (cast(:queues as text[]) is null or walked.queue = any (cast(:queues as text[])))
      and (cast(:kinds as text[]) is null or walked.kind = any (cast(:kinds as text[])))
),
open_line as materialized (
    select named.queue, named.kind, setting.max_running
    from named
    left join dibs_queues setting on setting.name = named.queue
    where not coalesce(setting.paused, false)
)

-- fragment: share
-- How many places each line gets of the :limit. With one line that is all of them; with several, its
-- part of the first :limit in claiming order, looked up without locks. Nothing is taken while a limited
-- queue is open to us: those claims are asked as `claim_within_limits`.
share as materialized (
    select open_line.queue, open_line.kind, cast(:limit as bigint) as places
    from open_line
    where (select count(*) from open_line) = 1 and open_line.max_running is null
    union all
    select first.queue, first.kind, count(*)
    from (
        select open_line.queue, open_line.kind
        from open_line
        {>near}
        where (select count(*) from open_line) > 1
          and not exists (select 1 from open_line other where other.max_running is not null)
        order by near.priority desc, near.run_at, near.id
        limit :limit
    ) first
    group by first.queue, first.kind
)

-- fragment: near
cross join lateral (
            select ready.id, ready.priority, ready.run_at
            from dibs_jobs ready
            where ready.state = 'ready'
              and ready.queue = open_line.queue
              and ready.kind = open_line.kind
            order by ready.priority desc, ready.run_at, ready.id
            limit :limit
        ) near

-- fragment: head
cross join lateral (
                select ready.id, ready.priority, ready.run_at
                from dibs_jobs ready
                where ready.state = 'ready'
                  and ready.queue = open_line.queue
                  and ready.kind = open_line.kind
                order by ready.priority desc, ready.run_at, ready.id
                limit 1
            ) head

-- fragment: picked
-- Rows are locked one by one down each line; those that another claimer has locked are skipped, not
-- waited for. Materialized: as `in (select … limit n for update skip locked)` the planner may run the
-- subselect once per row, and lease 50 jobs for a limit of 3.
shared as materialized (
    select job.id
    from share
    cross join lateral (
        select ready.id
        from dibs_jobs ready
        where ready.state = 'ready' and ready.queue = share.queue and ready.kind = share.kind
        order by ready.priority desc, ready.run_at, ready.id
        limit share.places
        for update skip locked
    ) job
),
-- With several lines, a line whose head was locked by somebody else leaves places over: they go to
-- whatever is free in any line. No sort above the locks: it would lock all of every line first.
spare as materialized (
    select cast(:limit as bigint) - count(*) as places
    from shared
    having (select sum(share.places) from share) > count(*) and (select count(*) from open_line) > 1
),
filled as materialized (
    select free.id
    from spare
    cross join lateral (
        select near.id
        from (
            select open_line.queue, open_line.kind
            from open_line
            {>head}
            order by head.priority desc, head.run_at, head.id
        ) line
        cross join lateral (
            select ready.id
            from dibs_jobs ready
            where ready.state = 'ready'
              and ready.queue = line.queue
              and ready.kind = line.kind
              and ready.id <> all (array(select shared.id from shared))
            order by ready.priority desc, ready.run_at, ready.id
            for update skip locked
        ) near
        limit spare.places
    ) free
),
picked as materialized (
    select shared.id from shared
    union all
    select filled.id from filled
)

-- fragment: taken
-- By primary key, as an array: of a join the planner believes that it has thousands of rows, and reads
-- the whole table for ten. (Nor may the state stand here as a second guard: without statistics the
-- planner then reads all ready jobs. The lock already guarantees that the row is still ready.)
taken as (
    update dibs_jobs job
    set {>leased}
    where job.id = any (array(select picked.id from picked))
    returning {job_columns:job}
)

-- fragment: leased
state = 'running',
        attempts = job.attempts + 1,
        worker = :worker,
        token = nextval('dibs_token'),
        claimed_at = {now},
        lease_until = {now} + interval '1 microsecond' * coalesce(
            cast(cast(:leases as jsonb) ->> job.kind as bigint), cast(:lease as bigint)
        )

-- fragment: header
exists (select 1 from open_line where open_line.max_running is not null) as limited,
    cast(:look as boolean) and {>overdue} as overdue,
    {>crowded} as crowded

-- fragment: crowded
(select sum(share.places) from share) > (select count(*) from picked)
        and (select count(*) from open_line) > 1

-- name: lock_limits
-- Taken before the running jobs are counted, in a statement of its own: the count must see what
-- those who held the lock before us have claimed.
select setting.name
from dibs_queues setting
where setting.max_running is not null
  and (cast(:queues as text[]) is null or setting.name = any (cast(:queues as text[])))
order by setting.name
for update

-- name: claim_within_limits
with recursive
{>lines},
room as materialized (
    select limited.queue, limited.max_running - ({>running}) as places
    from (
        select distinct open_line.queue, open_line.max_running
        from open_line
        where open_line.max_running is not null
    ) limited
),
share as materialized (
    select first.queue, first.kind, count(*) as places
    from (
        select ranked.queue, ranked.kind
        from (
            select
                open_line.queue,
                open_line.kind,
                near.*,
                row_number() over (
                    partition by open_line.queue
                    order by near.priority desc, near.run_at, near.id
                ) as rank
            from open_line
            {>near}
        ) ranked
        left join room on room.queue = ranked.queue
        where room.places is null or ranked.rank <= room.places
        order by ranked.priority desc, ranked.run_at, ranked.id
        limit :limit
    ) first
    group by first.queue, first.kind
),
picked as materialized (
    select job.id
    from share
    cross join lateral (
        select ready.id
        from dibs_jobs ready
        where ready.state = 'ready' and ready.queue = share.queue and ready.kind = share.kind
        order by ready.priority desc, ready.run_at, ready.id
        limit share.places
        for update skip locked
    ) job
),
{>taken}
select
    false as limited,
    cast(:look as boolean) and {>overdue} as overdue,
    {>crowded} as crowded,
    {job_columns:taken}
from (select 1) once
left join taken on true
order by taken.priority desc, taken.run_at, taken.id

-- fragment: running
select count(*)
        from dibs_jobs other
        where other.state = 'running' and other.queue = limited.queue

-- name: claim_job_within_limits
with {>wanted},
limited as materialized (
    select wanted.id, wanted.queue, wanted.max_running
    from wanted
    where wanted.max_running is not null
),
picked as materialized (
    select limited.id
    from limited
    where limited.max_running > ({>running})
),
{>taken}
select
    false as limited,
    cast(:look as boolean) and {>overdue} as overdue,
    false as crowded,
    {job_columns:taken}
from (select 1) once
left join taken on true

-- name: claim_job
with {>wanted},
picked as materialized (
    select wanted.id
    from wanted
    where wanted.max_running is null
),
{>taken}
select
    exists (select 1 from wanted where wanted.max_running is not null) as limited,
    cast(:look as boolean) and {>overdue} as overdue,
    false as crowded,
    {job_columns:taken}
from (select 1) once
left join taken on true

-- fragment: wanted
-- Locked first, by primary key, and judged after: the state is that of the locked row.
locked as materialized (
    select job.id, job.queue, job.state
    from dibs_jobs job
    where job.id = cast(:job as uuid)
    for update skip locked
),
wanted as materialized (
    select locked.id, locked.queue, setting.max_running
    from locked
    left join dibs_queues setting on setting.name = locked.queue
    where locked.state = 'ready' and not coalesce(setting.paused, false)
)

-- name: settle
with
{>settling}
select ended.id from ended
union all
select returned.id from returned

-- fragment: settling
given as materialized (
    select *
    from unnest(
        cast(:ids as uuid[]),
        cast(:tokens as bigint[]),
        cast(:states as text[]),
        cast(:settled_as as text[]),
        cast(:delays as bigint[]),
        cast(:refunds as boolean[]),
        cast(:results as text[]),
        cast(:errors as text[]),
        cast(:messages as text[]),
        cast(:pipelines as uuid[])
    ) as given (
        id, token, state, settled_as, delay, refund, result, errors, message, pipeline_id
    )
),
-- Fenced by the token: a worker that lost its lease changes nothing. A job that was asked to
-- cancel ends here, too, whatever its holder made of it.
ended as (
    delete from dibs_jobs job
    using given
    where {>held}
      and (given.state in ('succeeded', 'failed', 'cancelled') or job.cancel_reason is not null)
    returning
        {kept_columns:job},
        job.attempts - cast(given.refund as integer) as attempts,
        case
            when given.state in ('succeeded', 'failed', 'cancelled') then given.state
            else 'cancelled'
        end as state,
        coalesce(job.pipeline_id, given.pipeline_id) as pipeline_id,
        coalesce(
            given.message,
            case
                when given.state not in ('succeeded', 'failed') then nullif(job.cancel_reason, '')
            end,
            job.message
        ) as message,
        given.result,
        given.errors,
        given.token as settled_token,
        given.settled_as
),
moved as (
    insert into dibs_finished (
        {kept_columns},
        attempts, state, pipeline_id, message, result, errors, settled_token, settled_as,
        finished_at
    )
    select
        {kept_columns:ended},
        ended.attempts,
        ended.state,
        ended.pipeline_id,
        ended.message,
        ended.result,
        ended.errors,
        ended.settled_token,
        ended.settled_as,
        {now}
    from ended
),
returned as (
    update dibs_jobs job
    set
        state = given.state,
        run_at = coalesce({now} + given.delay * interval '1 microsecond', job.run_at),
        attempts = job.attempts - cast(given.refund as integer),
        errors = given.errors,
        pipeline_id = coalesce(job.pipeline_id, given.pipeline_id),
        worker = null,
        lease_until = null,
        settled_token = given.token,
        settled_as = given.settled_as
    from given
    where {>held}
      and job.cancel_reason is null
      and given.state not in ('succeeded', 'failed', 'cancelled')
    returning job.id
)

-- fragment: held
-- A running job is one with a lease. Said by its state, the planner may go through all running jobs
-- (the partial index on leases) instead of straight to these.
job.id = any (cast(:ids as uuid[]))
      and job.id = given.id
      and job.token = given.token
      and job.lease_until is not null

-- name: renew
-- Rows that somebody has locked are left for the next beat, and answered as they stand.
with given as (
    select *
    from unnest(cast(:ids as uuid[]), cast(:tokens as bigint[])) as given (id, token)
),
free as materialized (
    select job.id
    from given
    join dibs_jobs job on {>held}
    order by job.id
    for update of job skip locked
),
renewed as (
    update dibs_jobs job
    set lease_until = {now} + :lease * interval '1 microsecond'
    where job.id = any (array(select free.id from free))
    returning job.id, job.lease_until, job.cancel_reason
)
select
    job.id,
    job.token,
    coalesce(renewed.lease_until, job.lease_until) as lease_until,
    coalesce(renewed.cancel_reason, job.cancel_reason) as cancel_reason
from given
join dibs_jobs job on {>held}
left join renewed on renewed.id = job.id

-- name: stage
with due as materialized (
    select job.id
    from dibs_jobs job
    where job.state = 'scheduled' and job.run_at <= {now}
    order by job.run_at
    limit :limit
    for update skip locked
)
update dibs_jobs job
set state = 'ready'
where job.id = any (array(select due.id from due))
returning job.id

-- name: sweep
-- What a sweep makes of an expired lease; the same rule stands in states.swept.
with expired as materialized (
    select
        job.id,
        job.worker,
        case
            when job.cancel_reason is not null then 'cancelled'
            when job.attempts < job.max_attempts then 'ready'
            else 'failed'
        end as state,
        cast(
            cast(job.errors as jsonb) || jsonb_build_object(
                'attempt', job.attempts,
                'token', job.token,
                'at', (to_jsonb({now} at time zone 'utc') #>> '{}') || 'Z',
                'worker', job.worker,
                'type', 'LeaseLost',
                'message', 'worker died'
            ) as text
        ) as errors
    from dibs_jobs job
    where job.state = 'running' and job.lease_until <= {now}
    order by job.lease_until
    limit :limit
    for update skip locked
),
ended as (
    delete from dibs_jobs job
    using expired
    where job.id = any (array(select expired.id from expired))
      and job.id = expired.id
      and expired.state <> 'ready'
    returning
        {kept_columns:job},
        job.attempts,
        expired.state,
        job.pipeline_id,
        coalesce(nullif(job.cancel_reason, ''), job.message) as message,
        expired.errors,
        job.settled_token,
        job.settled_as
),
moved as (
    insert into dibs_finished (
        {kept_columns},
        attempts, state, pipeline_id, message, errors, settled_token, settled_as, finished_at
    )
    select
        {kept_columns:ended},
        ended.attempts,
        ended.state,
        ended.pipeline_id,
        ended.message,
        ended.errors,
        ended.settled_token,
        ended.settled_as,
        {now}
    from ended
),
returned as (
    update dibs_jobs job
    set state = 'ready', worker = null, lease_until = null, errors = expired.errors
    from expired
    where job.id = any (array(select expired.id from expired))
      and job.id = expired.id
      and expired.state = 'ready'
    returning job.id, job.kind, job.queue, expired.worker, job.token, job.attempts, job.state
)
select returned.* from returned
union all
select ended.id, ended.kind, ended.queue, ended.worker, ended.token, ended.attempts, ended.state
from ended

-- name: prune
delete from dibs_finished
where id = any (
    array(
        select old.id
        from dibs_finished old
        where old.id < :before
          and old.finished_at < {now_minus:older_than}
          and old.state {in_texts:states}
        order by old.id
        limit :limit
        for update skip locked
    )
)
returning id

-- name: tick
-- One statement, because an idle worker should cost next to nothing. The notification comes back to the
-- worker's own listener and proves that it can hear.
with here as (
    insert into dibs_workers (name, queues, kinds, concurrency, running, started_at, seen_at)
    values (:worker, :queues, :kinds, :concurrency, :running, {now}, {now})
    on conflict (name) do update
    set running = excluded.running, seen_at = excluded.seen_at
    returning name
),
gone as (
    delete from dibs_workers where seen_at < {now_minus:forget_after} and name <> :worker
)
select
    {>overdue} as overdue,
    exists (select 1 from dibs_jobs ready where ready.state = 'ready') as ready,
    (select min(due.run_at) from dibs_jobs due where due.state = 'scheduled') as next_due,
    (select min(held.lease_until) from dibs_jobs held where held.state = 'running') as next_lease,
    {now} as now,
    pg_notify('dibs_wake', '!' || here.name) as told
from here

-- name: cancel
with ended as (
    delete from dibs_jobs job
    where job.id {in_ids:ids} and job.state in ('scheduled', 'blocked', 'ready')
    returning job.*
),
moved as (
    insert into dibs_finished (
        {kept_columns},
        attempts, state, pipeline_id, message, errors, settled_token, settled_as, finished_at
    )
    select
        {kept_columns:ended},
        ended.attempts,
        'cancelled',
        ended.pipeline_id,
        coalesce(cast(:reason as text), ended.message),
        ended.errors,
        ended.settled_token,
        ended.settled_as,
        {now}
    from ended
),
flagged as (
    update dibs_jobs job
    set cancel_reason = coalesce(cast(:reason as text), '')
    where job.id {in_ids:ids} and job.lease_until is not null
    returning job.id
)
select ended.id from ended
union all
select flagged.id from flagged

-- name: retry
with wanted as materialized (
    select job.*
    from dibs_finished job
    where job.id {in_ids:ids} and job.state in ('failed', 'cancelled')
    order by job.id
    for update
),
back as (
    insert into dibs_jobs (
        {kept_columns},
        attempts, state, pipeline_id, errors, settled_token, settled_as
    )
    select
        {retried_columns:wanted},
        0,
        'ready',
        wanted.pipeline_id,
        wanted.errors,
        wanted.settled_token,
        wanted.settled_as
    from wanted
    on conflict do nothing
    returning id
),
gone as (
    delete from dibs_finished finished
    using back
    where finished.id = back.id
),
waiting as materialized (
    select job.id, job.state
    from dibs_jobs job
    where job.id {in_ids:ids}
    order by job.id
    for update
),
hurried as (
    update dibs_jobs job
    set state = 'ready', run_at = {now}
    where job.id = any (array(select waiting.id from waiting where waiting.state = 'scheduled'))
    returning job.id
)
select back.id from back
union all
select hurried.id from hurried
