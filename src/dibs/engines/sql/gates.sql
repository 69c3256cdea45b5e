-- Blocks about trains and slots that SQLite and PostgreSQL share (ADR 12).

-- name: gates_after
select gate.sort, gate.name
from dibs_gates gate
where cast(:after_sort as {text}) is null
   or (gate.sort, gate.name) > (cast(:after_sort as {text}), cast(:after_name as {text}))
order by gate.sort, gate.name
limit :limit
{if_free}

-- name: gates_named
-- Names that jobs have, one after another: one step into the index for each, however many jobs there are. A gate
-- that is not there, although a job has a position at it, was deleted by an operator.
with recursive named (name, nth) as (
    select cast(:after as {text}), 0
    union all
    select
        case cast(:sort as {text})
            when 'train' then (select min(job.train) from dibs_jobs job where job.train > named.name)
            else (select min(job.slot) from dibs_jobs job where job.slot > named.name)
        end,
        named.nth + 1
    from named
    where named.name is not null and named.nth < :limit
)
select
    named.name,
    not exists (
        select 1 from dibs_gates gate where gate.sort = :sort and gate.name = named.name {as_gate}
    )
    and case cast(:sort as {text})
        when 'train' then exists (
            select 1 from dibs_jobs job where job.train = named.name and job.position is not null
        )
        else exists (
            select 1 from dibs_jobs job where job.slot = named.name and job.position is not null
        )
    end as is_lost
from named
where named.name is not null and named.nth > 0
order by named.nth

-- name: gates
-- The job shown as head of a slot is the one that started last, or else the next one.
select
    gate.name,
    coalesce(
        gate.held_by,
        case gate.sort
            when 'train' then (
                select job.id
                from dibs_jobs job
                where job.train = gate.name {as_job} and job.position is not null
                order by job.position
                limit 1
            )
            else coalesce(
                (
                    select job.id
                    from dibs_jobs job
                    where job.slot = gate.name {as_job} and job.state = 'running'
                    order by job.token desc
                    limit 1
                ),
                (
                    select job.id
                    from dibs_jobs job
                    where job.slot = gate.name {as_job}
                      and job.state in ('ready', 'blocked')
                      and job.position is not null
                    order by job.position, job.priority desc, job.run_at, job.id
                    limit 1
                )
            )
        end
    ) as head,
    case when gate.held_by is null then 0 else 1 end + case gate.sort
        when 'train' then (
            select count(*) from dibs_jobs job where job.train = gate.name {as_job} and job.position is not null
        )
        else (
            select count(*) from dibs_jobs job where job.slot = gate.name {as_job} and job.position is not null
        )
    end as length,
    gate.held_by is not null as held,
    case gate.sort
        when 'train' then 0
        else (
            select count(*) from dibs_jobs job where job.slot = gate.name {as_job} and job.state = 'running'
        )
    end as running
from dibs_gates gate
where gate.sort = :sort
  and (cast(:names as {texts}) is null or gate.name {in_texts:names})
  and (cast(:after as {text}) is null or gate.name > cast(:after as {text}))
  and (gate.held_by is not null or not {if:held})
order by gate.name
limit :limit

-- fragment: replace
-- A waiting job gets other arguments and another time; its gate, if it has one, decides what follows.
update dibs_jobs
set
    args = :args,
    run_at = :run_at,
    state = case
        when train is not null or (slot is not null and :run_at <= {now}) then 'blocked'
        when :run_at <= {now} then 'ready'
        else 'scheduled'
    end
where id = {id:holder} and state in ('scheduled', 'blocked', 'ready')
