-- Blocks that all SQL databases share.
--
-- A block is `-- name:` and one statement. `:name` is a parameter, spelled for each driver when
-- it is sent; values are never written into the text. `{…}` is a spelling of the dialect (see
-- `Dialect` in blocks.py) or, with `>`, a fragment, which may have arguments ($1, $2). A dialect's own file
-- overrides blocks by name.

-- name: get
{>of_these:all_columns}

-- fragment: of_these
select {>$1}
from {given:dibs_jobs}
where {is_given:job.id}
union all
select {>$1}
from {given:dibs_finished}
where {is_given:job.id}

-- fragment: all_columns
{job_columns:job}

-- name: find
-- Newest first: ids are time-ordered, so the primary key is the page index of both tables.
{>newest_of:all_jobs}

-- name: find_in_states
-- As `find`, without `succeeded`: the index on states finds the others, however many succeeded.
{>newest_of:in_states_or_running}

-- name: find_in_pipeline
-- As `find`, by the index on pipelines.
{>newest_of:in_pipeline}

-- fragment: newest_of
select {job_columns:job}
from (
    {>$1_by:newest}
) job
order by job.id desc
limit :limit

-- name: find_oldest
-- Ids only. It starts at `after`, not at the beginning, so that each page costs the same.
{>oldest_of:all_jobs}

-- name: find_oldest_in_states
{>oldest_of:in_states}

-- name: find_oldest_in_pipeline
{>oldest_of:in_pipeline}

-- fragment: oldest_of
select job.id
from (
    {>$1_by:oldest}
) job
order by job.id
limit :limit

-- name: search
-- Of the newest `scan` jobs that match, the ones with texts that hold what is looked for, by their place in line;
-- and the last of all, by which the caller knows how many there were.
{>hits_of:all_jobs}

-- name: search_in_states
{>hits_of:in_states}

-- name: search_in_pipeline
{>hits_of:in_pipeline}

-- fragment: hits_of
select looked.id, looked.nth, looked.hit
from (
    select
        job.id,
        job.hit,
        row_number() over (order by job.id desc) as nth,
        count(*) over () as total
    from (
        select *
        from (
            {>$1_by:looked}
        ) each_job
        order by each_job.id desc
        limit :scan
    ) job
) looked
where looked.hit or looked.nth = looked.total
order by looked.nth
limit :limit

-- name: count
{>count_of:all_jobs}

-- name: count_in_states
{>count_of:in_states}

-- name: count_in_pipeline
{>count_of:in_pipeline}

-- fragment: count_of
select count(*) as jobs
from (
    {>$1_by:newest_ids}
) job

-- fragment: all_jobs_by
{>$1:dibs_jobs:all_jobs}
    union all
    {>$1:dibs_finished:all_jobs}

-- fragment: in_states_by
{>$1:dibs_jobs:live}
    union all
    {>$1:dibs_finished:failed}
    union all
    {>$1:dibs_finished:cancelled}

-- fragment: in_states_or_running_by
{>in_states_by:$1}
    union all
    {>$1:dibs_jobs:only_running}

-- fragment: in_pipeline_by
{>$1:dibs_jobs:in_pipeline}
    union all
    {>$1:dibs_finished:in_pipeline}

-- fragment: looked
select *
    from (
        select job.id, {>may_match} as hit
        from $1 job
        where {>$2} and {>is_between} and {>is_wanted}
        order by job.id desc
        limit :scan
    ) $1_$2

-- fragment: newest_ids
select *
    from (
        select job.id
        from $1 job
        where {>$2} and {>is_between} and {>is_wanted}
        order by job.id desc
        limit :scan
    ) $1_$2

-- fragment: may_match
(cast(:in_args as {text}) is null or {holds:job.args:in_args})
        and (cast(:in_errors as {text}) is null or {holds:job.errors:in_errors})
        and (
            cast(:in_text as {text}) is null
            or {holds:job.kind:in_text}
            or {holds:job.errors:in_text}
            or (job.message is not null and {holds:job.message:in_text})
        )

-- fragment: is_between
({id:after} is null or job.id < {id:after}) and ({id:newer_than} is null or job.id > {id:newer_than})

-- fragment: newest
-- The first page of a table, where a condition holds.
select *
    from (
        select {job_columns:job}
        from $1 job
        where {>$2} and {>is_between} and {>is_wanted}
        order by job.id desc
        limit :limit
    ) $1_$2

-- fragment: oldest
select *
    from (
        select job.id
        from $1 job
        where {>$2} and job.id > {id:after} and ({id:newer_than} is null or job.id > {id:newer_than}) and {>is_wanted}
        order by job.id
        limit :limit
    ) $1_$2

-- fragment: all_jobs
{true}

-- fragment: live
{if:live}

-- fragment: only_running
-- By the index on leases, however many wait.
{if:running} and job.state = 'running' and job.lease_until is not null

-- fragment: failed
-- The second comparison is the one of the partial index.
{if:failed} and job.state = 'failed' and job.state <> 'succeeded'

-- fragment: cancelled
{if:cancelled} and job.state = 'cancelled' and job.state <> 'succeeded'

-- fragment: in_pipeline
job.pipeline_id = {id:pipeline_id}

-- fragment: is_wanted
(cast(:queue as {text}) is null or job.queue = :queue)
          and (cast(:kind as {text}) is null or job.kind = :kind)
          and (cast(:train as {text}) is null or job.train = :train)
          and (cast(:slot as {text}) is null or job.slot = :slot)
          and (cast(:worker as {text}) is null or job.worker = :worker)
          and (cast(:queue_like as {text}) is null or {like:job.queue:queue_like})
          and (cast(:kind_like as {text}) is null or {like:job.kind:kind_like})
          and (cast(:train_like as {text}) is null or {like:job.train:train_like})
          and (cast(:worker_like as {text}) is null or {like:job.worker:worker_like})
          and (cast(:since as {bigint}) is null or job.enqueued_at >= {now_minus:since})
          and ({id:pipeline_id} is null or job.pipeline_id = {id:pipeline_id})
          and (cast(:states as {texts}) is null or {is_in:job.state:states})
          and {has_tags:tags}

-- fragment: glanced
job.id, job.state, job.attempts, job.token, job.progress, job.message, job.run_at

-- name: glance
{>of_these:glanced}

-- name: glance_at_queue
-- Finished jobs are bounded by their id, which is about when they were made: however many are kept, only the
-- latest are read.
select *
from (
    select {>glanced}
    from dibs_jobs job {by_id}
    where cast(:queue as {text}) is null or job.queue = :queue
    order by job.id desc
    limit :limit
) live
union all
select *
from (
    select {>glanced}
    from dibs_finished job {by_id}
    where job.id > {id:since} and (cast(:queue as {text}) is null or job.queue = :queue)
    order by job.id desc
    limit :limit
) finished

-- name: traffic
-- Each part is bounded: new jobs by their id, which is about when they were made, failed ones by their number.
select counted.queue, counted.what, count(*) as jobs
from (
    {>new_jobs:dibs_jobs}
    union all
    {>new_jobs:dibs_finished}
    union all
    select *
    from (
        select job.queue, 'failed' as what
        from dibs_finished job
        where job.state = 'failed' and job.state <> 'succeeded'
        order by job.id desc
        limit :limit
    ) failed
) counted
group by counted.queue, counted.what

-- fragment: new_jobs
select *
    from (
        select job.queue, 'enqueued' as what
        from $1 job {by_id}
        where job.id > {id:since}
        order by job.id desc
        limit :limit
    ) new_in_$1

-- name: counts
-- Most finished jobs succeeded. They are all rows minus the others, so that their rows need not be read.
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
select counted.state, cast(sum(counted.jobs) as {bigint}) as jobs
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
-- The live jobs are read once; a queue with a setting has a row even without jobs.
select counted.queue as name, setting.paused, setting.max_running, counted.state, counted.jobs
from (
    select queue, state, count(*) as jobs
    from dibs_jobs
    group by queue, state
) counted
left join dibs_queues setting on setting.name = counted.queue
union all
select setting.name, setting.paused, setting.max_running, null as state, 0 as jobs
from dibs_queues setting

-- name: settled
{>of_these:settled_as}

-- fragment: settled_as
job.id, job.state, job.token, job.settled_token, job.settled_as

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
    select {job_columns:live}, live.cancel_reason from dibs_jobs live where live.id = {id:job}
    union all
    select {job_columns:kept}, null from dibs_finished kept where kept.id = {id:job}
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
-- Without notifications there is nothing to send.
select cast(:hint as {text}) as told

-- name: tick
{>report_worker}

-- fragment: report_worker
insert into dibs_workers (name, version, queues, kinds, concurrency, running, started_at, seen_at)
values (:worker, :version, :queues, :kinds, :concurrency, :running, {now}, {now})
on conflict (name) do update
set version = excluded.version, queues = excluded.queues, kinds = excluded.kinds, running = excluded.running,
    seen_at = excluded.seen_at

-- name: upcoming
select {>upcoming}

-- fragment: upcoming
{>overdue} as overdue,
    exists (select 1 from dibs_jobs ready where ready.state = 'ready') as ready,
    {>next_due} as next_due,
    (select min(held.lease_until) from dibs_jobs held where held.state = 'running') as next_lease,
    {>schedule_changes} as schedules,
    {now} as now

-- fragment: schedule_changes
(select cast(coalesce(sum(schedule.revision), 0) as {bigint}) from dibs_schedules schedule)

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
-- What a worker runs is counted here: its own report is as old as its last upkeep round.
select
    worker.name,
    worker.version,
    worker.queues,
    worker.kinds,
    worker.concurrency,
    coalesce(held.jobs, 0) as running,
    worker.started_at,
    worker.seen_at
from dibs_workers worker
left join (
    select job.worker, count(*) as jobs
    from dibs_jobs job {by_lease}
    where job.state = 'running' and job.lease_until is not null
    group by job.worker
) held on held.worker {as_gate} = worker.name
where worker.seen_at >= {now_minus:silence}
order by worker.name

-- name: make_schedule
insert into dibs_schedules (name, last_tick, revision, about)
values (:schedule, :tick, :new_revision, :about)
on conflict (name) do nothing
returning name

-- name: change_schedule
update dibs_schedules
set last_tick = :tick, revision = :new_revision, about = :about
where name = :schedule and last_tick = :since and revision = :revision
returning name

-- name: delete_schedule
delete from dibs_schedules where name = :schedule returning name

-- name: move_schedule
-- Only from where the worker saw it. `last_tick < :tick` would not do: if two workers catch up, one on the first
-- of three ticks and one on all three, the later would repeat the first.
update dibs_schedules
set last_tick = :tick
where name = :schedule and last_tick = :since and revision = :revision
returning name

-- name: schedules
select name, last_tick, revision, about from dibs_schedules

-- name: add_to_minute
insert into dibs_minutes (width, at_minute, queue, kind, {minute_columns})
values (:width, :at_minute, :queue, :kind, {minute_values})
on conflict (width, at_minute, queue, kind) do update
set {minute_adds:dibs_minutes}

-- name: minutes
select counted.at_minute, counted.queue, counted.kind, {minute_sums:counted}
from (
    select
        at_minute,
        case when {if:by_queue} then queue end as queue,
        case when {if:by_kind} then kind end as kind,
        {minute_columns}
    from dibs_minutes
    where width = :width
      and at_minute >= :first
      and at_minute < :last
      and (cast(:queue as {text}) is null or queue = :queue)
      and (cast(:kind as {text}) is null or kind = :kind)
) counted
group by counted.at_minute, counted.queue, counted.kind

-- name: forget_minutes
delete from dibs_minutes where width = :width and at_minute < :before

-- name: refuse
insert into dibs_refusals (job, token, tried, worker, refused_at)
select job.id, cast(:token as {bigint}), cast(:tried as {text}), cast(:worker as {text}), {now}
from ({>this_job}) job
where {true}
on conflict (job, token, tried) do nothing

-- name: trim_refusals
delete from dibs_refusals
where job = {id:job}
  and refused_at < (
      select min(kept.refused_at)
      from (
          select newest.refused_at
          from dibs_refusals newest
          where newest.job = {id:job}
          order by newest.refused_at desc
          limit 20
      ) kept
  )

-- name: refusals
select refusal.token, refusal.tried, refusal.worker, refusal.refused_at
from dibs_refusals refusal
where refusal.job in ({>this_job})

-- name: forget_refusals
delete from dibs_refusals
where not exists (select 1 from dibs_jobs job where job.id = dibs_refusals.job)
  and not exists (select 1 from dibs_finished job where job.id = dibs_refusals.job)

-- fragment: this_job
select live.id from dibs_jobs live where live.id = {id:job}
union
select kept.id from dibs_finished kept where kept.id = {id:job}

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
set {>recovered}
where id = cast(:job as {uuid})
  and token = :token and lease_until <= {now_minus:stale_after}
returning id, slot

-- fragment: recovered
state = case when slot is null then 'ready' else 'blocked' end,
    attempts = 0,
    worker = null,
    lease_until = null,
    progress = 0,
    message = null,
    cancel_reason = null,
    errors = :errors

-- name: update
-- Of a waiting job: its gate, if it has one, decides what follows. One that waits for its parents only notes it.
update dibs_jobs
set
    priority = coalesce(:priority, priority),
    run_at = coalesce(:run_at, run_at),
    state = case
        when {>waits_for_parents} or train is not null then 'blocked'
        when coalesce(:run_at, run_at) > {now} then 'scheduled'
        when slot is not null then 'blocked'
        else 'ready'
    end
where id = cast(:job as {uuid}) and state in ('scheduled', 'blocked', 'ready')
returning id, train, slot

-- fragment: waits_for_parents
(state = 'blocked' and position is null)

-- name: delete_live
delete from dibs_jobs
where id {in_ids:ids} and state <> 'running'
returning id, train, slot

-- name: delete_finished
delete from dibs_finished
where id {in_ids:ids}
returning id

-- fragment: insert_finished
insert into dibs_finished (
    {kept_columns},
    attempts, state, pipeline_id, message, errors, settled_token, settled_as, finished_at
)
select
    {kept_columns:$1},

-- fragment: insert_settled
insert into dibs_finished (
    {kept_columns},
    attempts, state, pipeline_id, message, result, errors, settled_token, settled_as, finished_at
)
select
    {kept_columns:$1},

-- fragment: insert_retried
insert into dibs_jobs (
    {kept_columns},
    attempts, state, pipeline_id, errors, settled_token, settled_as
)
select
    {retried_columns:$1},
    0,
    case when $1.train is null and $1.slot is null then 'ready' else 'blocked' end,
    $1.pipeline_id,
    $1.errors,
    $1.settled_token,
    $1.settled_as

-- name: prune
-- Not a job that holds a train, nor one with a key that still lasts, nor one that a waiting child may read.
delete from dibs_finished
where id in ({>old_jobs})
returning id

-- fragment: old_jobs
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
  and not {>has_waiting_child:old}
order by old.id
limit :limit
{if_free}

-- fragment: has_waiting_child
exists (
      select 1
      from dibs_parents edge
      join dibs_jobs child on child.id = edge.child
      where edge.parent = $1.id
  )

-- name: set_queue
insert into dibs_queues (name, paused, max_running)
values (:queue, coalesce(:paused, {false}), :max_running)
on conflict (name) do update
set
    paused = coalesce(:paused, dibs_queues.paused),
    max_running = case when :set_limit then :max_running else dibs_queues.max_running end

-- name: lift_from_queue
-- An update only, so that a mistyped name leaves no row behind.
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
-- If two processes do this at once, the second violates the key, starts over and finds the id.
insert into dibs_identity (one, id) values (1, {id:new})

-- name: departing
-- Without locked jobs, which are just being claimed or settled; a later page finds them again. A job of a train
-- or slot departs only while its queue is paused: else the next job there would become ready here. A job of a
-- pipeline departs after the pipeline's end: its edges stay behind.
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
-- Without a job that holds a train, which waits for an operator, and without a parent of waiting jobs, which may
-- still read its result.
select {stored_columns:job}
from dibs_finished job {by_id}
where job.id > {id:after}
  and not exists (select 1 from dibs_gates gate where gate.held_by = job.id)
  and not {>has_waiting_child:job}
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
-- The jobs of these that came from that store before.
select id
from dibs_moving
where way = 'in' and store = {id:store} and id {in_ids:ids}

-- name: key_holders
select job.unique_key, job.id as holder
from dibs_jobs job
where job.unique_key {in_texts:keys}

-- name: clash
-- Jobs from another store can't keep their positions on this train if one is taken, if the running job here
-- would be behind them, or while the train is held.
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
