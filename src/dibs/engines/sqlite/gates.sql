-- SQLite's words for trains and slots (ADR 12); gates.py says which blocks make an answer. Whoever
-- writes is alone with the file, so the row of a gate is a place to note things and not a lock.

-- name: make_gate
-- A row that somebody deleted by hand comes back with the positions that are in use.
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

-- name: next_position
update dibs_gates
set last_position = last_position + 1
where sort = :sort and name = :name
returning last_position

-- name: place
update dibs_jobs set position = :position where id = :id

-- name: close_train
-- Who comes from another store may be before who is ready here.
update dibs_jobs
set state = 'blocked'
where train = :name and state in ('ready', 'scheduled') and :sort = 'train'

-- name: raise_position
update dibs_gates
set last_position = max(last_position, :position)
where sort = :sort and name = :name

-- name: forget_gate
-- The last one leaves no trace.
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

-- name: open_train
-- The head goes when it is due, unless the train waits for a person.
update dibs_jobs
set state = case when run_at <= {now} then 'ready' else 'scheduled' end
where id = (
        select head.id
        from dibs_jobs head
        where head.train = :name and head.position is not null
        order by head.position
        limit 1
    )
  and state = 'blocked'
  and not exists (
        select 1
        from dibs_gates gate
        where gate.sort = 'train' and gate.name = :name and gate.held_by is not null
    )

-- name: hold_train
-- Only its head holds a train: of those who are left, nobody may be ahead of it.
update dibs_gates
set held_by = :id
where sort = 'train'
  and name = :name
  and held_by is null
  and not exists (
        select 1 from dibs_jobs ahead where ahead.train = :name and ahead.position < :position
    )

-- name: let_go
update dibs_gates
set held_by = null
where held_by {in_ids:ids}
returning sort, name

-- name: standing_train
select gate.held_by is not null as was_held
from dibs_gates gate
where gate.sort = 'train' and gate.name = :name

-- name: release
update dibs_gates set held_by = null where sort = 'train' and name = :name

-- name: slot_running
-- The index is named: to save a sort of the few who run, SQLite would read all who wait.
select job.id, job.slot_limit, job.position, job.cancel_reason is not null as asked
from dibs_jobs job indexed by dibs_jobs_slot
where job.slot = :name and job.state = 'running'
order by job.token

-- name: slot_line
-- Who waits and is due, in the order of their turns. Two probes: one walk over both states would read all.
select job.id, job.state, job.queue, job.kind, job.slot_limit, job.position
from (
    select *
    from (
        select *
        from dibs_jobs waiting
        where waiting.slot = :name and waiting.state = 'blocked' and waiting.position is not null
        order by waiting.position, waiting.priority desc, waiting.run_at, waiting.id
        limit :limit
    )
    union all
    select *
    from (
        select *
        from dibs_jobs waiting
        where waiting.slot = :name and waiting.state = 'ready'
        order by waiting.position, waiting.priority desc, waiting.run_at, waiting.id
    )
) job
order by job.position, job.priority desc, job.run_at, job.id

-- name: move
update dibs_jobs set state = :state where id {in_ids:ids}

-- name: set_offer
-- Who mends makes none that has led to nothing once more.
update dibs_gates
set offer_ends = case
    when not :offered then null
    when :is_new or (offer_ends is null and not :mends) then {now} + :patience
    else offer_ends
end
where sort = 'slot' and name = :name

-- name: end_offer
update dibs_gates set offer_ends = null where sort = 'slot' and name = :name

-- name: offers_over
select gate.name
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
-- Who has the slot comes first.
select job.id, job.slot_limit
from dibs_jobs job
where job.slot = :name and job.position is not null
order by job.state <> 'running', job.position, job.priority desc, job.run_at, job.id

-- name: wanted_of_slot
-- A job that is behind its slot may be claimed by name while there is room among those who run.
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
-- Arguments and time of a job that waits; where that leads to is for its gate to say, if it has one.
update dibs_jobs
set
    args = :args,
    run_at = :run_at,
    state = case
        when train is not null or (slot is not null and :run_at <= {now}) then 'blocked'
        when :run_at <= {now} then 'ready'
        else 'scheduled'
    end
where id = :holder and state in ('scheduled', 'blocked', 'ready')
returning train, slot

-- name: gates_after
select gate.sort, gate.name
from dibs_gates gate
where cast(:after_sort as text) is null
   or gate.sort > :after_sort
   or (gate.sort = :after_sort and gate.name > :after_name)
order by gate.sort, gate.name
limit :limit

-- name: drop_stale_hold
update dibs_gates
set held_by = null
where sort = :sort
  and name = :name
  and not exists (select 1 from dibs_finished job where job.id = dibs_gates.held_by)

-- name: slots_named
-- Names that jobs have, one after another: one step into the index for each, however many jobs there are. Whose
-- gate is not there, though somebody has a place, was deleted by hand.
with recursive named (name, nth) as (
    select min(job.slot), 1
    from dibs_jobs job
    where job.slot > :after
    union all
    select (select min(job.slot) from dibs_jobs job where job.slot > named.name), named.nth + 1
    from named
    where named.name is not null and named.nth < :limit
)
select
    named.name,
    not exists (select 1 from dibs_gates gate where gate.sort = 'slot' and gate.name = named.name)
    and exists (select 1 from dibs_jobs job where job.slot = named.name and job.position is not null) as is_lost
from named
where named.name is not null
order by named.nth

-- name: trains_named
with recursive named (name, nth) as (
    select min(job.train), 1
    from dibs_jobs job
    where job.train > :after
    union all
    select (select min(job.train) from dibs_jobs job where job.train > named.name), named.nth + 1
    from named
    where named.name is not null and named.nth < :limit
)
select
    named.name,
    not exists (select 1 from dibs_gates gate where gate.sort = 'train' and gate.name = named.name)
    and exists (select 1 from dibs_jobs job where job.train = named.name and job.position is not null) as is_lost
from named
where named.name is not null
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
                where job.train = gate.name and job.position is not null
                order by job.position
                limit 1
            )
            else coalesce(
                (
                    select job.id
                    from dibs_jobs job
                    where job.slot = gate.name and job.state = 'running'
                    order by job.token desc
                    limit 1
                ),
                (
                    select job.id
                    from dibs_jobs job
                    where job.slot = gate.name
                      and job.state in ('ready', 'blocked')
                      and job.position is not null
                    order by job.position, job.priority desc, job.run_at, job.id
                    limit 1
                )
            )
        end
    ) as head,
    (gate.held_by is not null) + (
        select count(*)
        from dibs_jobs job
        where (
                (gate.sort = 'train' and job.train = gate.name)
                or (gate.sort = 'slot' and job.slot = gate.name)
            )
          and job.position is not null
    ) as length,
    gate.held_by is not null as held
from dibs_gates gate
where gate.sort = :sort
  and (cast(:names as text) is null or gate.name {in_texts:names})
  and (cast(:after as text) is null or gate.name > :after)
  and (gate.held_by is not null or not :held)
order by gate.name
limit :limit

-- name: current
-- Who started last, running or not.
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

-- name: recover
update dibs_jobs
set
    state = case when slot is null then 'ready' else 'blocked' end,
    attempts = 0,
    worker = null,
    lease_until = null,
    cancel_reason = null,
    errors = :errors
where id = :job and token = :token and lease_until <= {now_minus:stale_after}
returning id, slot

-- name: delete_live
delete from dibs_jobs
where id {in_ids:ids} and state <> 'running'
returning id, train, slot

-- name: prune
-- Not who holds a train, nor whose key still lasts, nor whose result somebody who waits may ask for.
delete from dibs_finished
where id in (
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

-- name: upcoming
select
    {>overdue} as overdue,
    exists (select 1 from dibs_jobs ready where ready.state = 'ready') as ready,
    (
        select min(due.at)
        from (
            select min(job.run_at) as at from dibs_jobs job where job.state = 'scheduled'
            union all
            select min(gate.offer_ends) from dibs_gates gate
        ) due
    ) as next_due,
    (select min(held.lease_until) from dibs_jobs held where held.state = 'running') as next_lease,
    {now} as now

-- fragment: overdue
(
        exists (select 1 from dibs_jobs due where due.state = 'scheduled' and due.run_at <= {now})
        or exists (select 1 from dibs_jobs dead where dead.state = 'running' and dead.lease_until <= {now})
        or exists (select 1 from dibs_gates offer where offer.offer_ends <= {now})
    )
