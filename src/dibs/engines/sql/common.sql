-- Answers that every SQL database gives in the same words.
--
-- A block is `-- name:` and one statement. `:name` is a parameter, spelled for each driver when
-- it is sent; values are never written into the text. `{…}` is a spelling of the dialect (see
-- `Dialect` in sql.py) or, with `>`, a fragment. A dialect's own file overrides blocks by name.

-- name: get
select {job_columns:job}
from dibs_jobs job
where job.id {in_ids:ids}
union all
select {job_columns:job}
from dibs_finished job
where job.id {in_ids:ids}

-- name: find
-- Newest first: ids are time-ordered, so the primary key is the page index of both tables.
select {job_columns:job}
from (
    select *
    from (
        select {job_columns:job}
        from dibs_jobs job
        where {>matches}
        order by job.id desc
        limit :limit
    ) live
    union all
    select *
    from (
        select {job_columns:job}
        from dibs_finished job
        where {>matches}
        order by job.id desc
        limit :limit
    ) finished
) job
order by job.id desc
limit :limit

-- name: find_oldest
-- Ids only. From `after` on, not from the beginning: a page costs the same wherever it is.
select job.id
from (
    select *
    from (
        select job.id
        from dibs_jobs job
        where job.id > {id:after} and {>is_wanted}
        order by job.id
        limit :limit
    ) live
    union all
    select *
    from (
        select job.id
        from dibs_finished job
        where job.id > {id:after} and {>is_wanted}
        order by job.id
        limit :limit
    ) finished
) job
order by job.id
limit :limit

-- name: find_in_states
-- As `find`, when `succeeded` is not asked for: what else has finished is found by the index on states, however
-- many succeeded. (That they did not is said for the index, in its own words.)
select {job_columns:job}
from (
    select *
    from (
        select {job_columns:job}
        from dibs_jobs job
        where {if:live} and {>matches}
        order by job.id desc
        limit :limit
    ) live
    union all
    select *
    from (
        select {job_columns:job}
        from dibs_finished job
        where {if:failed} and job.state = 'failed' and job.state <> 'succeeded' and {>matches}
        order by job.id desc
        limit :limit
    ) failed
    union all
    select *
    from (
        select {job_columns:job}
        from dibs_finished job
        where {if:cancelled} and job.state = 'cancelled' and job.state <> 'succeeded' and {>matches}
        order by job.id desc
        limit :limit
    ) cancelled
) job
order by job.id desc
limit :limit

-- name: find_oldest_in_states
-- As `find_oldest`, in the same way.
select job.id
from (
    select *
    from (
        select job.id
        from dibs_jobs job
        where {if:live} and job.id > {id:after} and {>is_wanted}
        order by job.id
        limit :limit
    ) live
    union all
    select *
    from (
        select job.id
        from dibs_finished job
        where {if:failed} and job.state = 'failed' and job.state <> 'succeeded'
          and job.id > {id:after} and {>is_wanted}
        order by job.id
        limit :limit
    ) failed
    union all
    select *
    from (
        select job.id
        from dibs_finished job
        where {if:cancelled} and job.state = 'cancelled' and job.state <> 'succeeded'
          and job.id > {id:after} and {>is_wanted}
        order by job.id
        limit :limit
    ) cancelled
) job
order by job.id
limit :limit

-- fragment: matches
(cast(:after as {uuid}) is null or job.id < cast(:after as {uuid}))
          and {>is_wanted}

-- fragment: is_wanted
(cast(:queue as {text}) is null or job.queue = :queue)
          and (cast(:kind as {text}) is null or job.kind = :kind)
          and (cast(:train as {text}) is null or job.train = :train)
          and (cast(:slot as {text}) is null or job.slot = :slot)
          and (cast(:pipeline_id as {uuid}) is null or job.pipeline_id = cast(:pipeline_id as {uuid}))
          and (cast(:states as {texts}) is null or job.state {in_texts:states})
          and {has_tags:tags}

-- fragment: glanced
job.id, job.state, job.attempts, job.token, job.progress, job.message, job.run_at

-- name: glance
select {>glanced}
from dibs_jobs job
where job.id {in_ids:ids}
union all
select {>glanced}
from dibs_finished job
where job.id {in_ids:ids}

-- name: glance_at_queue
-- Finished jobs are bounded by their id, which is about when they were made: however many are kept, only the
-- latest are read.
select *
from (
    select {>glanced}
    from dibs_jobs job
    where cast(:queue as {text}) is null or job.queue = :queue
    order by job.id desc
    limit :limit
) live
union all
select *
from (
    select {>glanced}
    from dibs_finished job
    where job.id > cast(:since as {uuid}) and (cast(:queue as {text}) is null or job.queue = :queue)
    order by job.id desc
    limit :limit
) finished

-- name: counts
-- Who succeeded are most of all, and the rest of them: nobody reads their rows to count them.
select counted.state, cast(sum(counted.jobs) as bigint) as jobs
from (
    select job.state, count(*) as jobs from dibs_jobs job group by job.state
    union all
    select job.state, count(*) as jobs from dibs_finished job where job.state <> 'succeeded' group by job.state
    union all
    select
        'succeeded' as state,
        (select count(*) from dibs_finished)
        - (select count(*) from dibs_finished job where job.state <> 'succeeded') as jobs
) counted
group by counted.state
having sum(counted.jobs) > 0

-- name: counts_of_queue
select counted.state, cast(sum(counted.jobs) as bigint) as jobs
from (
    select job.state, count(*) as jobs
    from dibs_jobs job
    where job.queue = :queue
    group by job.state
    union all
    select job.state, count(*) as jobs
    from dibs_finished job
    where job.queue = :queue
    group by job.state
) counted
group by counted.state

-- name: queues
select named.name, setting.paused, setting.max_running, counted.state, counted.jobs
from (
    select queue as name from dibs_jobs
    union
    select name from dibs_queues
) named
left join dibs_queues setting on setting.name = named.name
left join (
    select queue, state, count(*) as jobs
    from dibs_jobs
    group by queue, state
) counted on counted.queue = named.name

-- name: settled
select job.id, job.state, job.token, job.settled_token, job.settled_as
from dibs_jobs job
where job.id {in_ids:ids}
union all
select job.id, job.state, job.token, job.settled_token, job.settled_as
from dibs_finished job
where job.id {in_ids:ids}

-- name: explain
select
    {job_columns:job},
    coalesce(setting.paused, {false}) as paused,
    setting.max_running,
    (
        select count(*)
        from dibs_jobs other
        where other.state = 'running' and other.queue = job.queue
    ) as running,
    job.cancel_reason,
    {now} as now
from (
    select {job_columns:live}, live.cancel_reason from dibs_jobs live where live.id = cast(:job as {uuid})
    union all
    select {job_columns:kept}, null from dibs_finished kept where kept.id = cast(:job as {uuid})
) job
left join dibs_queues setting on setting.name = job.queue

-- name: now
select {now} as now

-- name: backlog
select ready.queue, count(*) as jobs, min(ready.run_at) as since
from dibs_jobs ready
where ready.state = 'ready'
group by ready.queue

-- name: echo
-- Where nobody can be woken there is nobody to say it to.
select cast(:hint as {text}) as told

-- name: tick
-- A worker says that it is there, and hears when something is due next.
insert into dibs_workers (name, queues, kinds, concurrency, running, started_at, seen_at)
values (:worker, :queues, :kinds, :concurrency, :running, {now}, {now})
on conflict (name) do update
set queues = excluded.queues, kinds = excluded.kinds, running = excluded.running, seen_at = excluded.seen_at

-- name: upcoming
select
    {>overdue} as overdue,
    exists (select 1 from dibs_jobs ready where ready.state = 'ready') as ready,
    {>next_due} as next_due,
    (select min(held.lease_until) from dibs_jobs held where held.state = 'running') as next_lease,
    {now} as now

-- fragment: next_due
(
        select min(due.at)
        from (
            select min(job.run_at) as at from dibs_jobs job where job.state = 'scheduled'
            union all
            select min(gate.offer_ends) from dibs_gates gate
        ) due
    )

-- fragment: overdue
(
        exists (select 1 from dibs_jobs due where due.state = 'scheduled' and due.run_at <= {now})
        or exists (select 1 from dibs_jobs dead where dead.state = 'running' and dead.lease_until <= {now})
        or exists (select 1 from dibs_gates offer where offer.offer_ends <= {now})
    )

-- name: leave
delete from dibs_workers where name = :worker returning name

-- name: workers
select name, queues, kinds, concurrency, running, started_at, seen_at
from dibs_workers
where seen_at >= {now_minus:silence}
order by name

-- name: begin_schedule
-- The first who sees a schedule says from when on its ticks count.
insert into dibs_schedules (name, last_tick)
values (:schedule, :tick)
on conflict (name) do nothing
returning name

-- name: move_schedule
-- Whoever saw it elsewhere comes too late: this tick is not theirs. That it is older would not be enough:
-- of two who catch up, one on the first of three ticks and one on all, the later would repeat the first.
update dibs_schedules
set last_tick = :tick
where name = :schedule and last_tick = :since
returning name

-- name: schedules
select name, last_tick from dibs_schedules

-- name: stage
update dibs_jobs
set state = case when slot is null then 'ready' else 'blocked' end
where id in (
    select due.id
    from dibs_jobs due
    where due.state = 'scheduled' and due.run_at <= {now}
    order by due.run_at
    limit :limit
)
returning id, slot

-- name: progress
update dibs_jobs
set progress = :fraction, message = coalesce(:message, message)
where id = cast(:job as {uuid}) and token = :token and lease_until is not null
returning id, token, lease_until, cancel_reason

-- name: recover
update dibs_jobs
set
    state = case when slot is null then 'ready' else 'blocked' end,
    attempts = 0,
    worker = null,
    lease_until = null,
    cancel_reason = null,
    errors = :errors
where id = cast(:job as {uuid})
  and token = :token and lease_until <= {now_minus:stale_after}
returning id, slot

-- name: delete_live
delete from dibs_jobs
where id {in_ids:ids} and state <> 'running'
returning id, train, slot

-- name: delete_finished
delete from dibs_finished
where id {in_ids:ids}
returning id

-- name: prune
-- Not a job that holds a train, nor one with a key that still lasts, nor one that a waiting child may read.
delete from dibs_finished
where id in (
    select old.id
    from dibs_finished old
    where old.id < cast(:before as {uuid})
      and old.finished_at < {now_minus:older_than}
      and old.state {in_texts:states}
      and (old.unique_until is null or old.unique_until <= {now})
      and not exists (
          select 1
          from dibs_gates gate
          where gate.sort = 'train' and gate.name = old.train and gate.held_by = old.id
      )
      and not exists (
          select 1
          from dibs_parents edge
          join dibs_jobs child on child.id = edge.child
          where edge.parent = old.id
      )
    order by old.id
    limit :limit
)
returning id

-- name: set_queue
insert into dibs_queues (name, paused, max_running)
values (:queue, coalesce(:paused, {false}), :max_running)
on conflict (name) do update
set
    paused = coalesce(:paused, dibs_queues.paused),
    max_running = case when :set_limit then :max_running else dibs_queues.max_running end

-- name: lift_from_queue
-- A queue that has no setting gets none by this: a name that was mistyped leaves nothing behind.
update dibs_queues
set
    paused = coalesce(:paused, paused),
    max_running = case when :set_limit then :max_running else max_running end
where name = :queue

-- name: age_gates
update dibs_gates set offer_ends = {minus:offer_ends:micros}

-- name: age_jobs
update dibs_jobs
set
    run_at = {minus:run_at:micros},
    enqueued_at = {minus:enqueued_at:micros},
    claimed_at = {minus:claimed_at:micros},
    lease_until = {minus:lease_until:micros},
    unique_until = {minus:unique_until:micros}

-- name: age_finished
update dibs_finished
set
    run_at = {minus:run_at:micros},
    enqueued_at = {minus:enqueued_at:micros},
    claimed_at = {minus:claimed_at:micros},
    finished_at = {minus:finished_at:micros},
    unique_until = {minus:unique_until:micros}

-- name: age_schedules
update dibs_schedules set last_tick = {minus:last_tick:micros}

-- name: identity
select id from dibs_identity

-- name: become
-- Of two at once the second violates the key, starts over, and finds who this is.
insert into dibs_identity (one, id) values (1, {id:new})

-- name: departing
-- Not those that somebody has locked: they are just being claimed or settled, and will be met again. Who waits
-- in a train or for a slot goes only while nobody can be claimed there: else the next would be let go here. Of a
-- pipeline nobody goes before its end: who waits for whom would stay behind.
select {stored_columns:job}
from dibs_jobs job {by_id}
where job.state <> 'running'
  and job.id > {id:after}
  and not exists (select 1 from dibs_pipelines pipeline where pipeline.id = job.pipeline_id)
  and (
      (job.train is null and job.slot is null)
      or (
          job.queue in (select setting.name from dibs_queues setting where setting.paused)
          and not exists (
              select 1
              from dibs_gates gate
              where gate.sort = 'train' and gate.name = job.train and gate.held_by is not null
          )
      )
  )
order by job.id
limit :limit
{if_free}

-- name: departing_finished
-- Not who holds a train: it would go on without the person it waits for. Nor who may still be asked for its result.
select {stored_columns:job}
from dibs_finished job {by_id}
where job.id > {id:after}
  and not exists (select 1 from dibs_gates gate where gate.held_by = job.id)
  and not exists (
      select 1
      from dibs_parents edge
      join dibs_jobs child on child.id = edge.child
      where edge.parent = job.id
  )
order by job.id
limit :limit
{if_free}

-- name: departed
select id, store, job
from dibs_moving
where way = 'out'
order by id
limit :limit

-- name: departed_these
select id, job
from dibs_moving
where way = 'out' and store = {id:store} and id {in_ids:ids}

-- name: noted
-- Which of these came from that store before.
select id
from dibs_moving
where way = 'in' and store = {id:store} and id {in_ids:ids}

-- name: key_holders
select job.unique_key, job.id as holder
from dibs_jobs job
where job.unique_key {in_texts:keys}

-- name: clash
-- Who comes from another store can't have their places on this train if one of them is taken, if who runs here
-- would be behind them, or while the train waits for a person.
select
    gate.last_position,
    gate.held_by is not null
    or exists (select 1 from dibs_jobs job where job.train = :name and job.position {in_numbers:positions})
    or exists (
        select 1
        from (
            select job.state, job.position
            from dibs_jobs job
            where job.train = :name and job.position is not null
            order by job.position
            limit 1
        ) head
        where head.state = 'running' and head.position >= :first
    ) as is_clash
from dibs_gates gate
where gate.sort = 'train' and gate.name = :name

-- name: landed
delete from dibs_moving
where way = :way and store = {id:store} and id {in_ids:ids}

-- name: landed_all
delete from dibs_moving
where way = :way and store = {id:store}
