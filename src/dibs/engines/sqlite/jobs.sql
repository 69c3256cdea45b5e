-- Blocks of SQLite; engine.py has the answers. Every answer that writes runs within `begin immediate`, so there is
-- one writer at a time and no row needs a lock.

-- name: enqueue
insert into dibs_jobs (
    id, kind, queue, args, priority, state, max_attempts, run_at, enqueued_at, unique_key, unique_until,
    on_cancelled, on_failed, pipeline_id, parent_id, tags, meta,
    train, slot, slot_policy, slot_limit, position
)
values (
    :id, :kind, :queue, :args, :priority, :state, :max_attempts, :run_at, :enqueued_at, :unique_key, :unique_until,
    :on_cancelled, :on_failed, :pipeline_id, :parent_id, :tags, :meta,
    :train, :slot, :slot_policy, :slot_limit, :position
)

-- name: holders
-- The jobs that have one of these ids or keys. Live jobs come last, so that they count.
select job.id, job.unique_key
from dibs_jobs job
where job.id {in_ids:ids}
union all
select job.id, null
from dibs_finished job
where job.id {in_ids:ids}
union all
select job.id, job.unique_key
from dibs_finished job
where job.unique_key {in_texts:keys} and job.unique_until > {now}
union all
select job.id, job.unique_key
from dibs_jobs job
where job.unique_key {in_texts:keys}

-- name: lines
-- The distinct (queue, kind) of ready jobs, found by jumping through the claim index: whatever lies
-- in a paused queue or is of another kind costs one jump, not one step per job. (Two probes: of a row
-- value comparison SQLite uses only the first column. The index is named: with statistics of a crowd
-- SQLite prefers to read and sort the whole table.)
with recursive walked (queue, kind) as (
    select first.queue, first.kind
    from (
        select ready.queue, ready.kind
        from dibs_jobs ready indexed by dibs_jobs_ready
        where ready.state = 'ready'
        order by ready.queue, ready.kind
        limit 1
    ) first
    union all
    select next.queue, next.kind
    from walked
    join dibs_jobs next on next.rowid = coalesce(
        (
            select ready.rowid
            from dibs_jobs ready indexed by dibs_jobs_ready
            where ready.state = 'ready' and ready.queue = walked.queue and ready.kind > walked.kind
            order by ready.kind
            limit 1
        ),
        (
            select ready.rowid
            from dibs_jobs ready indexed by dibs_jobs_ready
            where ready.state = 'ready' and ready.queue > walked.queue
            order by ready.queue, ready.kind
            limit 1
        )
    )
)
select
    walked.queue,
    walked.kind,
    case when setting.max_running is not null then setting.max_running - ({>running}) end as places
from walked
left join dibs_queues setting on setting.name = walked.queue
where not coalesce(setting.paused, 0)
  and (cast(:queues as text) is null or walked.queue {in_texts:queues})
  and (cast(:kinds as text) is null or walked.kind {in_texts:kinds})

-- fragment: running
select count(*) from dibs_jobs other where other.state = 'running' and other.queue = setting.name

-- name: near
-- The first jobs of one queue-kind pair, in claiming order.
select ready.id as near, ready.priority, ready.run_at as due
from dibs_jobs ready indexed by dibs_jobs_ready
where ready.state = 'ready' and ready.queue = :queue and ready.kind = :kind
order by ready.priority desc, ready.run_at, ready.id
limit :limit

-- name: wanted
select job.id as near
from dibs_jobs job
left join dibs_queues setting on setting.name = job.queue
where job.id = :job
  and job.state = 'ready'
  and not coalesce(setting.paused, 0)
  and (setting.max_running is null or setting.max_running > ({>running}))

-- name: tokens
update dibs_token set value = value + :taken returning value

-- name: lease
update dibs_jobs
set
    state = 'running',
    attempts = attempts + 1,
    worker = :worker,
    token = :token + picked.key,
    claimed_at = {now},
    lease_until = {now} + coalesce(
        (select own.value from json_each(:leases) own where own.key = dibs_jobs.kind), :lease
    )
from json_each(:ids) picked
where dibs_jobs.id = picked.value
returning {job_columns:dibs_jobs}

-- name: overdue
select {>overdue} as overdue

-- name: settle_ended
-- Fenced by the token: a worker that lost its lease changes nothing. A job that was asked to cancel
-- ends here, too, whatever its holder made of it.
{>insert_settled:job}
    job.attempts - :refund,
    case when :ends then :state else 'cancelled' end,
    coalesce(job.pipeline_id, :pipeline_id),
    coalesce(
        :message,
        case when :state in ('succeeded', 'failed') then job.message else nullif(job.cancel_reason, '') end
    ),
    :result,
    :errors,
    :token,
    :settled_as,
    {now}
from dibs_jobs job
where job.id = :id
  and job.token = :token
  and job.state = 'running'
  and (:ends or job.cancel_reason is not null)
returning {>ended}

-- fragment: ended
id, state, train, slot, position, on_cancelled, on_failed

-- name: settle_returned
update dibs_jobs
set
    state = case when slot is not null and :state = 'ready' then 'blocked' else :state end,
    run_at = coalesce({now} + :delay, run_at),
    attempts = attempts - :refund,
    errors = :errors,
    pipeline_id = coalesce(pipeline_id, :pipeline_id),
    worker = null,
    lease_until = null,
    settled_token = :token,
    settled_as = :settled_as
where id = :id and token = :token and state = 'running'
returning id, slot

-- name: forget
delete from dibs_jobs where id = :id

-- name: renew
update dibs_jobs
set lease_until = {now} + :lease
where id = :id and token = :token and state = 'running'
returning id, token, lease_until, cancel_reason

-- name: forget_workers
delete from dibs_workers where seen_at < {now_minus:forget_after}

-- name: expired
select
    job.id, job.kind, job.queue, job.worker, job.token, job.attempts, job.max_attempts,
    job.errors, job.cancel_reason, job.slot, {now} as now
from dibs_jobs job
where job.state = 'running' and job.lease_until <= {now}
order by job.lease_until
limit :limit

-- name: end
-- Out of the live table without a settlement: swept or cancelled.
{>insert_finished:job}
    job.attempts,
    :state,
    job.pipeline_id,
    coalesce(nullif(:message, ''), case when :state = 'failed' then job.message end),
    coalesce(:errors, job.errors),
    job.settled_token,
    job.settled_as,
    {now}
from dibs_jobs job
where job.id = :id
returning {>ended}

-- name: sweep_returned
update dibs_jobs
set state = case when slot is null then 'ready' else 'blocked' end, worker = null, lease_until = null, errors = :errors
where id = :id

-- name: standing
select job.id, job.state, case when job.state = 'running' then job.worker end as worker
from dibs_jobs job
where job.id {in_ids:ids}

-- name: asked_to_cancel
-- Running jobs that were asked to cancel, by the index on leases.
select job.id, job.token, job.worker
from dibs_jobs job
where job.state = 'running' and job.lease_until is not null and job.cancel_reason is not null

-- name: ask_to_cancel
update dibs_jobs set cancel_reason = coalesce(:reason, '') where id = :id

-- name: retry_scheduled
update dibs_jobs
set state = case when slot is null then 'ready' else 'blocked' end, run_at = {now}
where id = :id and state = 'scheduled'
returning id, slot

-- name: retry_finished
{>insert_retried:job}
from dibs_finished job
where job.id = :id
  and job.state in ('failed', 'cancelled')
  and not exists (
        select 1
        from dibs_finished other
        where other.unique_key = job.unique_key and other.unique_until > {now} and other.id <> job.id
    )
on conflict do nothing
returning id, train, slot

-- name: forget_finished
delete from dibs_finished where id = :id

-- name: files
select name, file from pragma_database_list

-- name: examine
select 'version' as fact, 'SQLite' as about, sqlite_version() as value
union all
select 'needs', 'SQLite', :needed
union all
select 'needs', 'schema', :schema
union all
select 'setting', 'journal_mode', journal_mode from pragma_journal_mode
union all
select 'setting', 'synchronous', cast(synchronous as text) from pragma_synchronous
union all
select 'isolation', 'own connections', 'one writer at a time'
union all
select 'pages', 'all', cast(page_count as text) from pragma_page_count
union all
select 'pages', 'free', cast(freelist_count as text) from pragma_freelist_count
union all
select 'hints', 'commits of others', 'looked for'

-- name: note_moves
-- A job that was enqueued again while it was away departs a second time.
insert into dibs_moving (id, way, store, job) values (:id, :way, :store, :job)
on conflict (id, way, store) do update set job = excluded.job

-- name: store_live
insert into dibs_jobs ({stored_columns}) values ({stored_values})

-- name: store_finished
insert into dibs_finished ({stored_columns}) values ({stored_values})

-- name: outrun
update dibs_token set value = max(value, :token)

-- name: insert_parents
insert into dibs_parents (child, place, parent)
select json_extract(edge.value, '$[0]'), json_extract(edge.value, '$[1]'), json_extract(edge.value, '$[2]')
from json_each(:edges) edge
