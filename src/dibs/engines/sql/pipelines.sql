-- Pipelines with jobs that wait for each other (ADR 18); pipelines.py has the answers. A job that waits for its
-- parents is in the live table, `blocked`, and at no gate.

-- name: lock_pipelines
-- Every operation that ends, returns or deletes a parent takes this lock first.
select pipeline.id
from dibs_pipelines pipeline
where pipeline.id {in_ids:ids}
order by pipeline.id

-- name: insert_pipeline
insert into dibs_pipelines (id, name, on_failed)
values ({id:id}, :name, :on_failed)
on conflict (id) do nothing
returning id

-- name: block_new_steps
update dibs_jobs set state = 'blocked' where id {in_ids:ids}

-- name: name_gate
-- The gate at which it gets a position once its parents have succeeded.
update dibs_jobs
set train = :train, slot = :slot, slot_policy = :slot_policy, slot_limit = :slot_limit
where id = {id:id}

-- name: parents
select edge.child as id, edge.parent as parent_id, edge.met
from dibs_parents edge
where edge.child {in_ids:jobs}
order by edge.child, edge.place

-- name: pipelines
select pipeline.id, pipeline.name, pipeline.on_failed
from dibs_pipelines pipeline
where pipeline.id {in_ids:ids}

-- name: newest_live_pipelines
{>newest_in:dibs_jobs}

-- name: newest_finished_pipelines
{>newest_in:dibs_finished}

-- fragment: newest_in
-- One step into the index for each, however many jobs a pipeline has.
with recursive found (id, nth) as (
    select {id:after}, 0
    union all
    select
        (
            select job.pipeline_id
            from $1 job
            where job.pipeline_id < found.id
            order by job.pipeline_id desc
            limit 1
        ),
        found.nth + 1
    from found
    where found.id is not null and found.nth < :limit
)
select found.id from found where found.id is not null and found.nth > 0

-- name: pipeline_counts
select job.pipeline_id, job.state, count(*) as jobs, sum(job.progress) as progress
from dibs_jobs job
where job.pipeline_id {in_ids:ids}
group by job.pipeline_id, job.state
union all
select job.pipeline_id, job.state, count(*) as jobs, sum(job.progress) as progress
from dibs_finished job
where job.pipeline_id {in_ids:ids}
group by job.pipeline_id, job.state

-- name: open_pipelines
select pipeline.id, pipeline.name, pipeline.on_failed
from dibs_pipelines pipeline
where exists (select 1 from dibs_jobs job where job.pipeline_id = pipeline.id)
order by pipeline.id
limit 100

-- name: steps_among
-- The jobs of these that belong to such a pipeline, live or finished.
select job.id, job.pipeline_id, job.state, job.state = 'blocked' and job.position is null as waits
from {given:dibs_jobs}
{join} dibs_pipelines pipeline on pipeline.id = job.pipeline_id
where {is_given:job.id}
union all
select job.id, job.pipeline_id, job.state, {false} as waits
from {given:dibs_finished}
{join} dibs_pipelines pipeline on pipeline.id = job.pipeline_id
where {is_given:job.id}

-- name: steps_in_slots
-- The jobs that a new one with the policy `replace` will cancel.
select job.id, job.pipeline_id, job.state
from dibs_jobs job
join dibs_pipelines pipeline on pipeline.id = job.pipeline_id
where job.slot {in_texts:slots} and job.state <> 'running' and job.position is not null

-- name: ended_steps
select job.id, job.state, pipeline.on_failed
from {given:dibs_finished}
{join} dibs_pipelines pipeline {by_id} on pipeline.id = job.pipeline_id
where {is_given:job.id}
order by job.id
{newest:job, pipeline}

-- name: meet_parents
update dibs_parents set met = {true} where parent {in_ids:ids}

-- name: siblings_met
-- All edges of the children of these jobs.
select distinct other.child as id, other.parent as parent_id, other.met
from dibs_parents edge
join dibs_parents other on other.child = edge.child
where edge.parent {in_ids:ids}

-- name: waiting_steps
select {>new_step}
from {given:dibs_jobs}
where {is_given:job.id} and job.state = 'blocked' and job.position is null
order by job.id
{newest:job}

-- fragment: new_step
job.id, job.kind, job.queue, job.args, job.priority, job.run_at, job.enqueued_at, job.max_attempts,
    job.on_cancelled, job.on_failed, job.pipeline_id, job.parent_id, job.tags, job.meta,
    job.train, job.slot, job.slot_policy, job.slot_limit

-- name: forget_steps
delete from dibs_jobs where id {in_ids:ids}

-- name: keep_enqueued_at
update dibs_jobs set enqueued_at = :enqueued_at where id = {id:id}

-- name: keep_enqueued_at_of_finished
-- Of jobs that were enqueued together, one may have superseded another.
update dibs_finished set enqueued_at = :enqueued_at where id = {id:id}

-- name: following_steps
-- All jobs that wait for this one, directly or not.
with recursive following (id) as (
    select edge.child from dibs_parents edge where edge.parent = {id:id}
    union
    select edge.child
    from following
    join dibs_parents edge on edge.parent = following.id
)
select job.id
from following
join dibs_jobs job on job.id = following.id
where job.state = 'blocked' and job.position is null
order by job.id

-- name: end_steps
-- Cancel jobs that wait for their parents; `settled_as` says whether one of these was the reason.
insert into dibs_finished ({kept_columns}, attempts, state, pipeline_id, message, errors, settled_as, finished_at)
select
    {kept_columns:job},
    job.attempts,
    'cancelled',
    job.pipeline_id,
    cast(:message as {text}),
    job.errors,
    cast(:settled_as as {text}),
    {now}
from {given:dibs_jobs}
where {is_given:job.id}

-- name: waiting_if_retried
-- The ended jobs of these with a parent that has not succeeded.
select job.id
from {given:dibs_finished}
where {is_given:job.id}
  and job.state in ('failed', 'cancelled')
  and exists (select 1 from dibs_parents unmet where unmet.child = job.id and not unmet.met)

-- name: block_steps
insert into dibs_jobs ({kept_columns}, attempts, state, pipeline_id, errors)
select {returned_columns:job}, 0, 'blocked', job.pipeline_id, job.errors
from {given:dibs_finished}
where {is_given:job.id}

-- name: forget_finished_steps
delete from dibs_finished where id {in_ids:ids}

-- name: revivable_steps
-- Jobs that were cancelled for one of these, with no other parent that ended without success.
select distinct job.id
from dibs_parents edge
join dibs_finished job on job.id = edge.child
where edge.parent {in_ids:ids}
  and {>may_revive}

-- fragment: may_revive
job.state = 'cancelled'
  and job.settled_as = 'parent'
  and not exists (
        select 1
        from dibs_parents other
        where other.child = job.id
          and not other.met
          and not exists (select 1 from dibs_jobs parent where parent.id = other.parent)
    )

-- name: waiting_pipelines
-- Pipelines with waiting jobs, by id.
select distinct job.pipeline_id as id
from dibs_jobs job
where job.pipeline_id > {id:after} and job.state = 'blocked' and job.position is null
order by job.pipeline_id
limit :limit

-- name: missing_parents
-- Parents that jobs of these pipelines wait for and that do not exist: deleted by hand, or pruned.
select distinct edge.parent as id
from dibs_jobs job
join dibs_parents edge on edge.child = job.id and not edge.met
where job.pipeline_id {in_ids:ids}
  and job.state = 'blocked'
  and job.position is null
  and not exists (select 1 from dibs_jobs parent where parent.id = edge.parent)
  and not exists (select 1 from dibs_finished parent where parent.id = edge.parent)

-- name: forget_unmet

delete from dibs_parents where parent {in_ids:ids} and not met

-- name: forget_parents
delete from dibs_parents where child {in_ids:ids}

-- name: forget_pipelines
delete from dibs_pipelines
where id {in_ids:ids}
  and not exists (select 1 from dibs_jobs job where job.pipeline_id = dibs_pipelines.id)
  and not exists (select 1 from dibs_finished job where job.pipeline_id = dibs_pipelines.id)

-- name: old_pipelines
-- Their ids are ordered by time, like the ids of jobs.
select pipeline.id
from dibs_pipelines pipeline
where pipeline.id < {id:before}
  and not exists (select 1 from dibs_jobs job where job.pipeline_id = pipeline.id)
  and not exists (select 1 from dibs_finished job where job.pipeline_id = pipeline.id)
order by pipeline.id
limit :limit
