-- Blocks of PostgreSQL for pipelines (ADR 18).

-- name: lock_pipelines
{>write_pipelines}

-- name: free_pipelines
{>write_pipelines:skip:locked}

-- fragment: write_pipelines
-- Lock by a write, in order: a caller's transaction with an older snapshot of the pipeline then fails.
with locked as materialized (
    select pipeline.id
    from dibs_pipelines pipeline
    where pipeline.id {in_ids:ids}
    order by pipeline.id
    for update $1 $2
)
update dibs_pipelines pipeline
set on_failed = pipeline.on_failed
where pipeline.id = any (array(select locked.id from locked))
returning pipeline.id

-- name: insert_parents
insert into dibs_parents (child, place, parent)
select cast(edge ->> 0 as uuid), cast(edge ->> 1 as integer), cast(edge ->> 2 as uuid)
from json_array_elements(cast(:edges as json)) edge

-- name: prune
-- Without jobs that hold a train, that keep a unique key, or with a result that a waiting child may read.
delete from dibs_finished
where id = any (array({>old_jobs}))
returning id
