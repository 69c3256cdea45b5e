-- SQLite's blocks for trains and slots (ADR 12). jobs/gates.py decides, gates.py says which blocks make an
-- answer. A writer is alone with the file, so the row of a gate keeps its facts and is no lock.

-- name: make_gate
-- A row that an operator deleted comes back with the positions that are in use.
insert into dibs_gates (sort, name, last_position)
select
    :sort,
    :name,
    coalesce(
        case :sort
            when 'train' then (select max(job.position) from dibs_jobs job where job.train = :name)
            else (select max(abs(job.position)) from dibs_jobs job where job.slot = :name)
        end,
        0
    )
where not exists (select 1 from dibs_gates gate where gate.sort = :sort and gate.name = :name)

-- name: last_position
select gate.last_position from dibs_gates gate where gate.sort = :sort and gate.name = :name

-- name: raise_position
update dibs_gates
set last_position = max(last_position, :position)
where sort = :sort and name = :name

-- name: place
update dibs_jobs set position = :position where id = :id

-- name: close_train
-- A job that comes from another store may be before the one that is ready here.
update dibs_jobs
set state = 'blocked'
where train = :name and state in ('ready', 'scheduled') and :sort = 'train'

-- name: forget_gate
-- A gate goes with its last job, unless it is held.
delete from dibs_gates
where sort = :sort
  and name = :name
  and held_by is null
  and not exists (
        select 1 from dibs_jobs job where :sort = 'train' and job.train = :name and job.position is not null
    )
  and not exists (
        select 1 from dibs_jobs job where :sort = 'slot' and job.slot = :name and job.position is not null
    )

-- name: train
-- The first job of a train, and the ended job that holds it.
select
    (select gate.held_by from dibs_gates gate where gate.sort = 'train' and gate.name = :name) as held_by,
    head.id,
    head.state,
    head.position
from (select 1)
left join (
    select job.id, job.state, job.position
    from dibs_jobs job
    where job.train = :name and job.position is not null
    order by job.position
    limit 1
) head on true

-- name: open_head
update dibs_jobs
set state = case when run_at <= {now} then 'ready' else 'scheduled' end
where id = :id

-- name: hold_train
update dibs_gates set held_by = :held_by where sort = 'train' and name = :name

-- name: let_go
update dibs_gates
set held_by = null
where held_by {in_ids:ids}
returning sort, name

-- name: standing_train
select gate.held_by is not null as was_held
from dibs_gates gate
where gate.sort = 'train' and gate.name = :name

-- name: slot
-- The jobs that are let through, and the first of the blocked ones. Two probes: one walk over all states would
-- read all that wait.
select {>at_gate}
from dibs_jobs job
where job.slot = :name and job.state in ('running', 'ready')
union all
select *
from (
    select {>at_gate}
    from dibs_jobs job
    where job.slot = :name and job.state = 'blocked' and job.position is not null
    order by job.position, job.priority desc, job.run_at, job.id
    limit :limit
)

-- fragment: at_gate
job.id, job.state, job.position, job.slot_limit, job.priority, job.run_at, job.queue, job.kind, job.token,
    job.cancel_reason is not null as asked

-- name: set_states
update dibs_jobs set state = :state where id {in_ids:ids}

-- name: offer
select exists (
    select 1 from dibs_gates gate where gate.sort = 'slot' and gate.name = :name and gate.offer_ends is not null
) as is_offered

-- name: set_offer
update dibs_gates
set offer_ends = case :offer when 'new' then {now} + :micros end
where sort = 'slot' and name = :name

-- name: offers_over
select gate.name, gate.last_position
from dibs_gates gate
where gate.offer_ends <= {now}
order by gate.offer_ends
limit :limit

-- name: slot_waiting
select job.id
from dibs_jobs job
where job.slot = :name and job.state <> 'running' and job.position is not null
order by job.id

-- name: slot_members
-- Running jobs come first.
select {>at_gate}
from dibs_jobs job
where job.slot = :name and job.position is not null
order by job.state <> 'running', job.position, job.priority desc, job.run_at, job.id
limit :limit

-- name: wanted_of_slot
-- A job that its slot blocks may be claimed by name while there is room beside the running ones.
select job.id as near, job.slot, job.slot_limit
from dibs_jobs job
left join dibs_queues setting on setting.name = job.queue
where job.id = :job
  and job.state = 'blocked'
  and job.slot is not null
  and job.position is not null
  and not coalesce(setting.paused, 0)
  and (setting.max_running is null or setting.max_running > ({>running}))

-- name: replace
{>replace}
returning train, slot

-- name: drop_stale_hold
update dibs_gates
set held_by = null
where sort = :sort
  and name = :name
  and not exists (select 1 from dibs_finished job where job.id = dibs_gates.held_by)

-- name: current
-- The job of each slot that started last, running or not.
with latest as materialized (
    select
        given.value as slot,
        max(
            coalesce((select max(job.token) from dibs_jobs job where job.slot = given.value), 0),
            coalesce((select max(job.token) from dibs_finished job where job.slot = given.value), 0)
        ) as token
    from json_each(:slots) given
)
select job.slot, job.id, job.token
from latest
join dibs_jobs job on job.slot = latest.slot and job.token = latest.token
union all
select job.slot, job.id, job.token
from latest
join dibs_finished job on job.slot = latest.slot and job.token = latest.token
