-- Blocks of PostgreSQL; engine.py has the answers. Many rows per statement; locked rows are skipped, not waited
-- for. At READ COMMITTED a statement sees one snapshot, and the server checks the conditions again on the newest
-- version of each row that it locks: so every guard stands in the statement that writes.
-- `{>name:a}` inserts the fragment `name` with `a` for `$1`, which may itself name a fragment; `{word:a}` is a
-- spelling of engine.py.

-- name: enqueue
-- For ids that are surely new. If a key is violated, the whole batch is tried again with `enqueue_again`. The hint
-- for waiting workers is sent by the same statement.
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

-- name: enqueue_one
-- The same for a single job, without arrays: after a pause each node of a query plan costs more than its work.
insert into dibs_jobs ({>new_columns})
select
    {>new_values:by_time}
from (
    select
        cast(:id as uuid) as id,
        cast(:kind as text) as kind,
        cast(:queue as text) as queue,
        cast(:args as text) as args,
        cast(:priority as smallint) as priority,
        cast(:run_at as timestamptz) as run_at,
        cast(:delay as bigint) as delay,
        cast(:max_attempts as integer) as max_attempts,
        cast(:unique_key as text) as unique_key,
        cast(:on_cancelled as text) as on_cancelled,
        cast(:on_failed as text) as on_failed,
        cast(:pipeline_id as uuid) as pipeline_id,
        cast(:parent_id as uuid) as parent_id,
        cast(:tags as text) as tags,
        cast(:meta as text) as meta
) given
{>due}
returning
    id, true as is_new, state, run_at, enqueued_at,
    case when cast(:hint as text) is not null then pg_notify('dibs_wake', cast(:hint as text)) end as told

-- name: wake
select pg_notify('dibs_wake', queue) as told from unnest(cast(:wake as text[])) as queue

-- name: enqueue_again
insert into dibs_jobs ({>new_columns})
{>new_rows}
on conflict (id) do nothing
returning id, true as is_new, state, run_at, enqueued_at

-- name: enqueue_forget_finished
-- A second statement: it must see jobs that finished while the insert waited for a key.
with known as (
    delete from dibs_jobs job
    using dibs_finished finished
    where job.id {in_ids:ids} and finished.id = job.id
    returning job.id
),
-- An old snapshot shows no job that has finished since. To store its id there fails with 40001.
tried as (
    insert into dibs_finished ({stored_columns})
    select {stored_columns:job}
    from dibs_jobs job
    where job.id {in_ids:ids} and {>is_above_read_committed}
    on conflict (id) do nothing
    returning id
)
select known.id, false as is_tried from known
union all
select tried.id, true from tried

-- fragment: is_above_read_committed
current_setting('transaction_isolation') not in ('read committed', 'read uncommitted')

-- fragment: new_columns
id, kind, queue, args, priority, state, max_attempts, run_at, enqueued_at, unique_key,
    on_cancelled, on_failed, pipeline_id, parent_id, tags, meta

-- fragment: new_values
given.id,
    given.kind,
    given.queue,
    given.args,
    given.priority,
    {>$1},
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

-- fragment: by_time
case when due.at <= {moment} then 'ready' else 'scheduled' end

-- fragment: at_its_gate
-- A job at a gate waits until that is opened.
case
        when $1.train is not null then 'blocked'
        when due.at > {moment} then 'scheduled'
        when $1.slot is not null then 'blocked'
        else 'ready'
    end

-- fragment: due
cross join lateral (
    select coalesce(given.run_at, {moment} + coalesce(given.delay, 0) * interval '1 microsecond') as at
) due

-- fragment: new_rows
select
    {>new_values:by_time}
from unnest(
    {>new_arrays}
) as given ({>new_names})
{>due}

-- fragment: new_arrays
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

-- fragment: new_names
id, kind, queue, args, priority, run_at, delay, max_attempts, unique_key,
    on_cancelled, on_failed, pipeline_id, parent_id, tags, meta

-- name: chain
-- Children of jobs that the same transaction has settled. A child with a taken key is left out.
insert into dibs_jobs ({>new_columns})
{>new_rows}
where not exists (select 1 from dibs_finished finished where finished.id = given.id)
on conflict do nothing

-- name: claim
-- Up to :limit ready jobs of the open queue-kind pairs, for one worker, in one statement.
with recursive
{>lines},
{>share},
{>picked},
{>taken}
select {>header}, {job_columns:taken}
from (select 1) once
left join taken on true
order by taken.priority desc, taken.run_at, taken.id

-- name: claim_line
-- The same for one queue-kind pair, if it is open and unlimited: the claim of an idle worker after a hint. The
-- jobs are in no order. After a pause each node of a query plan costs more than its work, so there are few.
update dibs_jobs job
set {>leased}
where job.ctid = any (array(
    select ready.ctid
    from dibs_jobs ready
    where ready.state = 'ready'
      and ready.queue = :queue
      and ready.kind = :kind
      and not exists (
          select 1
          from dibs_queues setting
          where setting.name = :queue and (setting.paused or setting.max_running is not null)
      )
    order by ready.priority desc, ready.run_at, ready.id
    limit :limit
    for update skip locked
))
returning false as limited, false as overdue, false as crowded, {job_columns:job}

-- name: claim_named
-- The same for the jobs that hints have named: by primary key, so it reads nothing of the claim index, which keeps
-- an entry for every job that has left it while an old snapshot is open. (As a plain condition the state would
-- let the planner use that index.)
update dibs_jobs job
set {>leased}
where job.ctid = any (array(
    {>by_name:named}
))
returning false as limited, false as overdue, false as crowded, {job_columns:job}

-- fragment: by_name
select named.ctid as spot
    from dibs_jobs named
    where named.id = any (cast(:$1 as uuid[]))
      and (named.state = 'ready') is true
      and (cast(:queues as text[]) is null or named.queue = any (cast(:queues as text[])))
      and named.kind = any (cast(:kinds as text[]))
      and not exists (
          select 1
          from dibs_queues setting
          where setting.name = named.queue and (setting.paused or setting.max_running is not null)
      )
    limit :limit
    for update skip locked

-- name: exchange
-- Settle and claim: one round trip, one commit.
with recursive
{>settling},
{>lines},
{>share},
{>picked},
{>taken}
select {>header}, {>exchanged}

-- name: exchange_on
-- The same from the worker's cursors on: `marks` has the last claimed job of each queue-kind pair. While a
-- transaction keeps an old snapshot open, the index keeps an entry for every job that has been ready since, and
-- without a cursor each claim reads all of them. The next claim without cursors finds jobs before them. The jobs
-- in `ahead` are claimed first, by primary key, wherever they stand.
with
{>settling},
{>marks},
share as materialized (
    select line.*, cast(:limit as bigint) - (select count(*) from ahead) as places
    from line
    where line.lines = 1
    union all
    select first.queue, first.kind, first.priority, first.run_at, first.id, first.lines, count(*)
    from (
        select line.*
        from line
        cross join lateral (
            select ready.id, ready.run_at
            from dibs_jobs ready
            where {>beyond}
            order by ready.run_at, ready.id
            limit :limit
        ) next
        where line.lines > 1
        order by line.priority desc, next.run_at, next.id
        limit cast(:limit as bigint) - (select count(*) from ahead)
    ) first
    group by first.queue, first.kind, first.priority, first.run_at, first.id, first.lines
),
picked as materialized (
    select ahead.spot from ahead
    union all
    select job.spot
    from share line
    cross join lateral (
        select ready.ctid as spot
        from dibs_jobs ready
        where {>beyond}
          and ready.id <> all (cast(:ahead as uuid[]))
        order by ready.run_at, ready.id
        limit line.places
        for update skip locked
    ) job
),
{>taken}
select exists (select 1 from limited) as limited, false as overdue, false as crowded, {>exchanged}

-- fragment: marks
mark as materialized (
    select given.*
    from json_to_recordset(cast(:marks as json)) as given (
        queue text,
        kind text,
        priority smallint,
        run_at timestamptz,
        id uuid
    )
),
-- None while one of the queues has a limit: that is the question `claim_within_limits`.
limited as materialized (
    select 1
    from dibs_queues setting
    where setting.max_running is not null
      and setting.name in (select mark.queue from mark)
),
line as materialized (
    select mark.*, count(*) over () as lines
    from mark
    where not exists (select 1 from limited)
      and not exists (select 1 from dibs_queues setting where setting.name = mark.queue and setting.paused)
),
ahead as materialized (
    {>by_name:ahead}
)

-- fragment: beyond
ready.state = 'ready'
              and ready.queue = line.queue
              and ready.kind = line.kind
              and ready.priority = line.priority
              and (ready.run_at, ready.id) > (line.run_at, line.id)

-- fragment: exchanged
case
        when row_number() over (order by taken.priority desc, taken.run_at, taken.id) = 1
        then array(select ended.id from ended union all select returned.id from returned)
    end as settled,
    {job_columns:taken}
from (select 1) once
left join taken on true
order by taken.priority desc, taken.run_at, taken.id

-- fragment: lines
-- The queue-kind pairs of ready jobs, found by jumps in the claim index: jobs of a paused queue or of another kind
-- cost one jump, not one read per job.
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
-- How many of the :limit jobs come from each queue-kind pair: all from a single one, else as many as it has among
-- the first :limit in claiming order, read without locks. None while one of the queues has a limit: that is the
-- question `claim_within_limits`.
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
-- Rows are locked one by one in index order, and rows that another claim has locked are skipped. Materialized:
-- with `in (select … limit n for update skip locked)` the planner may run the subselect once per row, and lease
-- 50 jobs for a limit of 3.
shared as materialized (
    select job.id, job.spot
    from share
    {>free_of_share}
),
-- If another claim has locked the first jobs of one of several pairs, free jobs of any pair fill the rest. No sort
-- above the locks: it would first lock all jobs of every pair.
spare as materialized (
    select cast(:limit as bigint) - count(*) as places
    from shared
    having (select sum(share.places) from share) > count(*) and (select count(*) from open_line) > 1
),
filled as materialized (
    select free.spot
    from spare
    cross join lateral (
        select near.spot
        from (
            select open_line.queue, open_line.kind
            from open_line
            {>head}
            order by head.priority desc, head.run_at, head.id
        ) line
        cross join lateral (
            select ready.ctid as spot
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
    select shared.spot from shared
    union all
    select filled.spot from filled
)

-- fragment: free_of_share
cross join lateral (
        select ready.id, ready.ctid as spot
        from dibs_jobs ready
        where ready.state = 'ready' and ready.queue = share.queue and ready.kind = share.kind
        order by ready.priority desc, ready.run_at, ready.id
        limit share.places
        for update skip locked
    ) job

-- fragment: taken
-- By physical address, which the locks keep, so that no index is read again. If a row changed just before it was
-- locked, this statement can't see its newest version; then the claim is `crowded`. As an array: for a join the
-- planner expects thousands of rows, and reads the whole table for ten. (Nor may the state be a second guard:
-- without statistics the planner then reads all ready jobs. The lock already guarantees that the row is ready.)
taken as (
    update dibs_jobs job
    set {>leased}
    where job.ctid = any (array(select picked.spot from picked))
    returning {job_columns:job}
)

-- fragment: taken_by_id
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
            cast((select cast(:leases as jsonb)) ->> job.kind as bigint), cast(:lease as bigint)
        )

-- fragment: header
exists (select 1 from open_line where open_line.max_running is not null) as limited,
    cast(:look as boolean) and {>overdue} as overdue,
    {>crowded} as crowded

-- fragment: crowded
(select count(*) from picked) > (select count(*) from taken)
        or (select sum(share.places) from share) > (select count(*) from picked)
        and (select count(*) from open_line) > 1

-- name: lock_limits
-- A statement of its own, before the running jobs are counted: the count must see what earlier holders of the
-- lock have claimed.
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
    select job.spot
    from share
    {>free_of_share}
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
picked as materialized (
    select limited.id
    from wanted limited
    where limited.max_running is null or limited.max_running > ({>running})
),
{>taken_by_id}
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
{>taken_by_id}
select
    exists (select 1 from wanted where wanted.max_running is not null)
        or (not exists (select 1 from wanted) and {>may_overtake}) as limited,
    cast(:look as boolean) and {>overdue} as overdue,
    not exists (select 1 from locked) and coalesce(
        (select job.state from dibs_jobs job where job.id = cast(:job as uuid)) = 'ready', false
    ) as crowded,
    {job_columns:taken}
from (select 1) once
left join taken on true

-- name: rest
select pg_sleep(cast(:seconds as double precision))

-- fragment: may_overtake
-- It waits for its slot: the gate decides.
exists (
            select 1
            from dibs_jobs job
            where job.id = cast(:job as uuid)
              and job.slot is not null
              and job.state in ('blocked', 'ready')
              and job.position is not null
        )

-- fragment: wanted
-- Locked first, by primary key, and tested after: the state is that of the locked row.
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

-- name: locked_rows
-- The others are locked from here on, in the order of their ids.
with free as materialized (
    select job.id
    from dibs_jobs job
    where job.id {in_ids:ids}
    order by job.id
    for update skip locked
)
select job.id
from dibs_jobs job
where job.id {in_ids:ids} and job.id not in (select free.id from free)

-- name: settle
with
{>settling}
select ended.id from ended
union all
select returned.id from returned

-- fragment: settling
{>given_settlements},
{>ended_jobs},
{>returned_jobs}

-- fragment: given_settlements
-- Jobs that just succeeded come as two arrays, which the server reads four times as fast as JSON. The others come
-- as one JSON text: as ten arrays, the drivers would convert each of their elements.
given as materialized (
    select
        usual.id,
        usual.token,
        'succeeded' as state,
        'succeeded' as settled_as,
        cast(null as bigint) as delay,
        false as refund,
        cast(null as text) as result,
        '[]' as errors,
        cast(null as text) as message,
        cast(null as uuid) as pipeline_id
    from unnest(cast(:succeeded as uuid[]), cast(:tokens as bigint[])) as usual (id, token)
    union all
    select
        given.id,
        given.token,
        given.state,
        given.settled_as,
        given.delay,
        coalesce(given.refund, false),
        given.result,
        coalesce(given.errors, '[]'),
        given.message,
        given.pipeline_id
    from json_to_recordset(cast(:settlements as json)) as given (
        id uuid,
        token bigint,
        state text,
        settled_as text,
        delay bigint,
        refund boolean,
        result text,
        errors text,
        message text,
        pipeline_id uuid
    )
)

-- fragment: ended_jobs
-- Fenced by the token: a worker that lost its lease changes nothing. A job that was asked to cancel ends here as
-- well, whatever its outcome.
ended as (
    delete from dibs_jobs job
    where {>held}
      and (job.cancel_reason is not null or {>ending})
    returning {kept_columns:job}, job.attempts, job.pipeline_id, job.message, job.cancel_reason
),
moved as (
    {>insert_settled:ended}
        ended.attempts - cast(given.refund as integer),
        {>ended_as},
        coalesce(ended.pipeline_id, given.pipeline_id),
        coalesce(
            given.message,
            case
                when given.state in ('succeeded', 'failed') then ended.message
                else nullif(ended.cancel_reason, '')
            end
        ),
        given.result,
        given.errors,
        given.token,
        given.settled_as,
        {now}
    from ended
    join given on given.id = ended.id
)

-- fragment: returned_jobs
-- One row that holds all returned jobs, by id: a join would again be planned for one job.
book as materialized (
    select jsonb_object_agg(back.id, to_jsonb(back)) as page
    from given back
    where not {>ends}
),
returned as (
    update dibs_jobs job
    set
        state = case
            when job.slot is not null and book.page -> cast(job.id as text) ->> 'state' = 'ready' then 'blocked'
            else book.page -> cast(job.id as text) ->> 'state'
        end,
        run_at = coalesce(
            {now} + cast(book.page -> cast(job.id as text) ->> 'delay' as bigint) * interval '1 microsecond',
            job.run_at
        ),
        attempts = job.attempts
            - cast(cast(book.page -> cast(job.id as text) ->> 'refund' as boolean) as integer),
        errors = book.page -> cast(job.id as text) ->> 'errors',
        pipeline_id = coalesce(
            job.pipeline_id, cast(book.page -> cast(job.id as text) ->> 'pipeline_id' as uuid)
        ),
        worker = null,
        lease_until = null,
        settled_token = job.token,
        settled_as = book.page -> cast(job.id as text) ->> 'settled_as'
    from book
    where job.id = any (array(select back.id from given back where not {>ends}))
      and {>fenced}
      and job.cancel_reason is null
    returning job.id
)

-- fragment: ending
(job.id in (select back.id from given back where {>ends})) is true

-- fragment: ends
back.state in ('succeeded', 'failed', 'cancelled')

-- fragment: held
-- The given claims that still hold their job. A running job is one with a lease: with its state the planner may
-- read all running jobs (the partial index on leases) instead of these. And in a hash: for a join with `given` it
-- expects one row, and compares each with each.
job.id = any (array(select given.id from given))
      and {>fenced}

-- fragment: fenced
((job.id, job.token) in (select given.id, given.token from given)) is true
      and job.lease_until is not null

-- name: renew
-- Rows that another transaction has locked are left for the next heartbeat, and returned as they are.
with given as materialized (
    select *
    from unnest(cast(:ids as uuid[]), cast(:tokens as bigint[])) as given (id, token)
),
free as materialized (
    select job.id
    from dibs_jobs job
    where {>held}
    order by job.id
    for update skip locked
),
renewed as (
    update dibs_jobs job
    set lease_until = {now} + :lease * interval '1 microsecond'
    where job.id = any (array(select free.id from free))
    returning job.id, job.token, job.lease_until, job.cancel_reason
)
select renewed.* from renewed
union all
select job.id, job.token, job.lease_until, job.cancel_reason
from dibs_jobs job
where {>held}
  and job.id not in (select renewed.id from renewed)

-- name: sweep
-- What becomes of a job with an expired lease; the same rule is `swept` in jobs/states.py.
with expired as materialized (
    select job.id, {>swept_to} as state
    from dibs_jobs job
    where job.state = 'running' and job.lease_until <= {now} and job.train is null and job.slot is null
    order by job.lease_until
    limit :limit
    for update skip locked
),
{>sweeping}
select returned.id, returned.kind, returned.queue, returned.token, returned.attempts, 'ready' as state
from returned
union all
select ended.id, ended.kind, ended.queue, ended.token, ended.attempts, ended.state
from ended

-- fragment: swept_to
case
            when job.cancel_reason is not null then 'cancelled'
            when job.attempts < job.max_attempts then 'ready'
            else 'failed'
        end

-- fragment: sweeping
ended as (
    delete from dibs_jobs job
    where job.id = any (array(select expired.id from expired where expired.state <> 'ready'))
    returning
        {kept_columns:job},
        job.attempts,
        case when job.cancel_reason is null then 'failed' else 'cancelled' end as state,
        job.pipeline_id,
        case when job.cancel_reason is null then job.message else nullif(job.cancel_reason, '') end as message,
        {>with_death} as errors,
        job.settled_token,
        job.settled_as
),
moved as (
    {>insert_finished:ended}
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
    set
        state = case when job.slot is null then 'ready' else 'blocked' end,
        worker = null,
        lease_until = null,
        errors = {>with_death}
    where job.id = any (array(select expired.id from expired where expired.state = 'ready'))
    returning job.id, job.kind, job.queue, job.token, job.attempts
)

-- fragment: with_death
cast(
            cast(job.errors as jsonb) || jsonb_build_object(
                'attempt', job.attempts,
                'token', job.token,
                'at', (to_jsonb({now} at time zone 'utc') #>> '{}') || 'Z',
                'worker', job.worker,
                'type', 'LeaseLost',
                'message', 'worker died'
            ) as text
        )

-- name: tick
-- One statement, because an idle worker should cost next to nothing. The notification comes back to the worker's
-- own listener and proves that hints arrive.
with here as (
    {>report_worker}
    returning name
),
gone as (
    delete from dibs_workers
    where name = any (array(
        select known.name
        from dibs_workers known
        where known.seen_at < {now_minus:forget_after} and known.name <> :worker
        for update skip locked  -- a worker that was stopped in the middle of its report keeps its row locked
    ))
)
select
    {>upcoming},
    pg_notify('dibs_wake', chr(1) || here.name) as told
from here

-- name: cancel
with ended as (
    delete from dibs_jobs job
    where job.id {in_ids:ids} and job.state in ('scheduled', 'blocked', 'ready')
    returning job.*
),
{>moved_cancelled},
flagged as (
    update dibs_jobs job
    set cancel_reason = coalesce(cast(:reason as text), '')
    where job.id {in_ids:ids} and job.lease_until is not null
    returning job.id, job.worker
),
-- One hint per worker, however many jobs: it need not wait for its next heartbeat.
told as (
    select pg_notify('dibs_wake', chr(2) || holder.worker)
    from (select distinct flagged.worker from flagged) holder
)
select
    ended.id,
    cast(null as text) as worker,
    ended.train,
    ended.position,
    ended.on_cancelled,
    ended.on_failed
from ended
union all
select flagged.id, flagged.worker, null, null, null, null
from flagged
cross join (select count(*) from told) hint

-- fragment: moved_cancelled
moved as (
    {>insert_finished:ended}
        ended.attempts,
        'cancelled',
        ended.pipeline_id,
        cast(:reason as text),
        ended.errors,
        ended.settled_token,
        ended.settled_as,
        {now}
    from ended
)

-- name: has_args_index
-- The indexes that an operator may make: see the guide on finding jobs.
select count(*) = 2 as ready
from pg_index made
where made.indexrelid in (to_regclass('dibs_jobs_args'), to_regclass('dibs_finished_args')) and made.indisvalid

-- name: search_by_args
-- All that is found by the index may match, however old it is; one of the two is contained, or the other.
select found.id, row_number() over (order by found.id desc) as nth, true as hit
from (
    select *
    from (
        {>contains:dibs_jobs}
        union all
        {>contains:dibs_finished}
    ) each_job
    order by each_job.id desc
    limit least(cast(:limit as bigint), cast(:scan as bigint))
) found
order by nth

-- fragment: contains
select *
    from (
        select job.id
        from $1 job
        where (
                cast(job.args as jsonb) @> cast(:as_text as jsonb)
                or cast(job.args as jsonb) @> cast(:as_json as jsonb)
            )
          and {>is_between}
          and {>is_wanted}
        order by job.id desc
        limit :limit
    ) $1_found

-- name: retry
with wanted as materialized (
    select job.*
    from dibs_finished job
    where job.id {in_ids:ids}
      and job.state in ('failed', 'cancelled')
      and not exists (
            select 1
            from dibs_finished other
            where other.unique_key = job.unique_key and other.unique_until > {now} and other.id <> job.id
        )
    order by job.id
    for update
),
back as (
    {>insert_retried:wanted}
    from wanted
    on conflict do nothing
    returning id, train, slot, unique_key
),
-- Jobs with a unique key are read once more: the job that had it may have finished since, and keep it for a time.
gone as (
    delete from dibs_finished finished
    using back
    where finished.id = back.id and back.unique_key is null
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
    set state = case when job.slot is null then 'ready' else 'blocked' end, run_at = {now}
    where job.id = any (array(select waiting.id from waiting where waiting.state = 'scheduled'))
    returning job.id
)
select back.id, back.train, back.slot, back.unique_key from back
union all
select hurried.id, null, null, null from hurried

-- name: forget_retried
delete from dibs_finished where id {in_ids:ids}

-- name: ready_lines
with recursive
{>lines}
select open_line.queue, open_line.kind
from open_line

-- name: echo
select pg_notify('dibs_wake', :hint) as told

-- name: examine
-- Facts about the server, for `dibs doctor`. A user without the right to see other sessions gets fewer rows.
select 'version' as fact, 'PostgreSQL' as about, current_setting('server_version') as value
union all
select 'needs', 'PostgreSQL', cast(:needed as text)
union all
select 'needs', 'schema', cast(:schema as text)
union all
select 'setting', name, setting
from pg_settings
where name in ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'default_transaction_read_only')
union all
select 'isolation', 'own connections', current_setting('transaction_isolation')
union all
select 'standby', 'server', 'on'
where pg_is_in_recovery()
union all
-- Old snapshots keep dead rows from being removed.
(
    select
        'transaction',
        'pid ' || pid || coalesce(' (' || nullif(application_name, '') || ')', '') || coalesce(', ' || state, ''),
        cast(extract(epoch from statement_timestamp() - xact_start) as text)
    from pg_stat_activity
    where xact_start is not null
      and pid <> pg_backend_pid()
      and datname = current_database()
      and backend_type = 'client backend'
    order by xact_start
    limit 3
)
union all
select 'prepared', gid, cast(extract(epoch from statement_timestamp() - prepared) as text)
from pg_prepared_xacts
where database = current_database()
union all
select 'slot', slot_name, cast(age(xmin) as text)
from pg_replication_slots
where xmin is not null
union all
select 'connections', 'used', cast(count(*) as text)
from pg_stat_activity
where backend_type = 'client backend'
union all
select 'connections', 'most', current_setting('max_connections')
union all
select measured.fact, counted.relname, measured.value
from pg_stat_user_tables counted
cross join lateral (
    values
        ('live rows', cast(counted.n_live_tup as text)),
        ('dead rows', cast(counted.n_dead_tup as text)),
        ('bytes', cast(pg_total_relation_size(counted.relid) as text)),
        ('vacuumed', cast(extract(
            epoch from statement_timestamp() - greatest(counted.last_autovacuum, counted.last_vacuum)
        ) as text))
) measured (fact, value)
where counted.relid in (to_regclass('dibs_jobs'), to_regclass('dibs_finished'))

-- name: oldest_lock
select
    other.pid as connection,
    other.usename as user,
    other.application_name as program,
    extract(epoch from clock_timestamp() - other.xact_start)::float8 as seconds
from pg_locks held
join pg_stat_activity other on other.pid = held.pid
where held.granted
  and held.relation in (select to_regclass(name) from unnest(cast(:tables as text[])) name)
  and other.pid <> pg_backend_pid()
order by other.xact_start
limit 1

-- name: schema_tables
-- The relations of these names that this connection would find.
select given.name
from unnest(cast(:tables as text[])) as given (name)
where to_regclass(given.name) is not null

-- name: schema_columns
-- Each column, as the server would write it.
select
    given.name as table_name,
    field.attname as name,
    format_type(field.atttypid, field.atttypmod)
        || case when field.attcollation <> kind.typcollation then ' collate ' || collation_used.collname else '' end
        || case when field.attnotnull then ' not null' else '' end
        || coalesce(' default ' || pg_get_expr(preset.adbin, preset.adrelid), '')
        || case when field.attgenerated <> '' then ' generated' else '' end as definition
from unnest(cast(:tables as text[])) as given (name)
join pg_class relation on relation.oid = to_regclass(given.name) and relation.relkind in ('r', 'p')
join pg_attribute field on field.attrelid = relation.oid and field.attnum > 0 and not field.attisdropped
join pg_type kind on kind.oid = field.atttypid
left join pg_collation collation_used on collation_used.oid = field.attcollation
left join pg_attrdef preset on preset.adrelid = relation.oid and preset.adnum = field.attnum

-- name: schema_indexes
-- Each index without the name of its table; one that could not be built to its end says so.
select
    given.name as table_name,
    named.relname as name,
    case when index.indisprimary then 'primary key ' when index.indisunique then 'unique ' else '' end
        || substring(pg_get_indexdef(index.indexrelid) from ' USING (.*)$')
        || case when index.indisvalid then '' else ', not valid' end as definition
from unnest(cast(:tables as text[])) as given (name)
join pg_index index on index.indrelid = to_regclass(given.name)
join pg_class named on named.oid = index.indexrelid

-- name: note_moves
-- A job that was enqueued again while it was away departs a second time.
insert into dibs_moving (id, way, store, job)
select given.id, given.way, given.store, given.job
from json_populate_recordset(cast(null as dibs_moving), cast(:rows as json)) given
on conflict (id, way, store) do update set job = excluded.job

-- name: store_live
insert into dibs_jobs ({stored_columns})
select {stored_columns:given}
from json_populate_recordset(cast(null as dibs_jobs), cast(:rows as json)) given

-- name: store_finished
insert into dibs_finished ({stored_columns})
select {stored_columns:given}
from json_populate_recordset(cast(null as dibs_finished), cast(:rows as json)) given

-- name: outrun_alone
-- One transaction at a time: of two that set the counter, the later would set it back.
select pg_advisory_xact_lock(hashtext('dibs_token')) as alone

-- name: outrun
-- Claims don't wait for that lock, but none takes a million tokens between the two statements.
select setval('dibs_token', cast(:token as bigint) + 1000000) as token
from dibs_token counter
where counter.last_value < cast(:token as bigint)
