-- Blocks of MySQL and MariaDB for pipelines (ADR 18). Rows are read from the list of ids, by key. Where a decision
-- depends on a read, it is a locking one, so that it is right in a caller's transaction with an old snapshot.

-- fragment: given_pipelines
-- Each by its key, in the order given: left to itself the server reads, and locks, all pipelines.
{>given_ids}
straight_join dibs_pipelines pipeline force index (primary) on pipeline.id = unhex(given.id)

-- name: lock_pipelines
select pipeline.id
from {>given_pipelines}
for update {of:pipeline}

-- name: insert_pipeline
insert into dibs_pipelines (id, name, on_failed, changes) values ({id:id}, :name, :on_failed, :changes)
on duplicate key update changes = dibs_pipelines.changes

-- name: pipeline_changes
select pipeline.changes
from {>given_pipelines}
for update {of:pipeline}

-- name: free_pipelines
select pipeline.id
from {>given_pipelines}
for update {of:pipeline} skip locked

-- name: pipelines_soon
select pipeline.id
from {>given_pipelines}
for update {of:pipeline} /*M! wait 1 */

-- name: children_of
select distinct edge.child as id
from {>given_ids}
straight_join dibs_parents edge force index (dibs_parents_parent) on edge.parent = unhex(given.id)
for update {of:edge}

-- name: insert_parents
insert into dibs_parents (child, place, parent)
select unhex(replace(given.child, '-', '')), given.place, unhex(replace(given.parent, '-', ''))
from json_table(
    :edges,
    '$[*]' columns (
        child char(36) character set ascii path '$[0]',
        place integer path '$[1]',
        parent char(36) character set ascii path '$[2]'
    )
) given

-- name: block_new_steps
update {>given_ids}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
set job.state = 'blocked'

-- name: parents
select edge.child as id, edge.parent as parent_id, edge.met
from json_table(:jobs, '$[*]' columns (id char(32) character set ascii path '$')) given
straight_join dibs_parents edge force index (primary) on edge.child = unhex(given.id)
order by edge.child, edge.place

-- name: pipelines
select pipeline.id, pipeline.name, pipeline.on_failed
from {>given_ids}
straight_join dibs_pipelines pipeline on pipeline.id = unhex(given.id)

-- name: steps_in_slots
select job.id, job.pipeline_id, job.state
from json_table(
    :slots, '$[*]' columns (name varchar(700) character set utf8mb4 collate {names} path '$')
) given
straight_join dibs_jobs job force index (dibs_jobs_gate) on job.gate = concat('s', given.name)
straight_join dibs_pipelines pipeline on pipeline.id = job.pipeline_id
where job.state <> 'running' and job.position is not null

-- name: meet_parents
update {>given_ids}
straight_join dibs_parents edge force index (dibs_parents_parent) on edge.parent = unhex(given.id)
set edge.met = true

-- name: siblings_met
select other.child as id, other.parent as parent_id, other.met
from {>given_ids}
straight_join dibs_parents edge force index (dibs_parents_parent) on edge.parent = unhex(given.id)
straight_join dibs_parents other force index (primary) on other.child = edge.child
for update {of:edge, other}

-- name: forget_steps
delete job
from {>given_ids}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)

-- name: forget_finished_steps
delete job
from {>given_ids}
straight_join dibs_finished job force index (primary) on job.id = unhex(given.id)

-- name: revivable_steps
select distinct job.id
from {>given_ids}
straight_join dibs_parents edge force index (dibs_parents_parent) on edge.parent = unhex(given.id)
straight_join dibs_finished job force index (primary) on job.id = edge.child
where {>may_revive}

-- name: missing_parents
select distinct edge.parent as id
from {>given_ids}
straight_join dibs_jobs job force index (dibs_jobs_pipeline) on job.pipeline_id = unhex(given.id)
straight_join dibs_parents edge force index (primary) on edge.child = job.id and not edge.met
where job.state = 'blocked'
  and job.position is null
  and not exists (select 1 from dibs_jobs parent where parent.id = edge.parent)
  and not exists (select 1 from dibs_finished parent where parent.id = edge.parent)

-- name: forget_unmet
delete edge
from {>given_ids}
straight_join dibs_parents edge force index (dibs_parents_parent) on edge.parent = unhex(given.id)
where not edge.met

-- name: forget_parents
delete edge
from {>given_ids}
straight_join dibs_parents edge force index (primary) on edge.child = unhex(given.id)

-- name: forget_pipelines
delete pipeline
from {>given_pipelines}
where not exists (select 1 from dibs_jobs job where job.pipeline_id = pipeline.id)
  and not exists (select 1 from dibs_finished job where job.pipeline_id = pipeline.id)

-- name: old
-- Without jobs that hold a train, that keep a unique key, or with a result that a waiting child may read.
select job.id
from dibs_finished job force index (primary)
where job.id < unhex(:before)
  and job.finished_at < {now_minus:older_than}
  and find_in_set(job.state, :states)
  and (job.unique_until is null or job.unique_until <= {now})
  and not exists (select 1 from dibs_gates gate where gate.held_by = job.id)
  and not {>has_waiting_child:job}
order by job.id
limit :limit
for update skip locked

-- fragment: newest_in
select job.pipeline_id as id
from $1 job force index ($1_pipeline)
where job.pipeline_id < {id:after}
group by job.pipeline_id
order by job.pipeline_id desc
limit :limit

-- name: pipeline_counts
{>counted_in:dibs_jobs}
union all
{>counted_in:dibs_finished}

-- fragment: counted_in
select job.pipeline_id, job.state, count(*) as jobs, sum(job.progress) as progress
from {>given_ids}
straight_join $1 job force index ($1_pipeline) on job.pipeline_id = unhex(given.id)
group by job.pipeline_id, job.state
