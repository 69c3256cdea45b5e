-- Blocks of PostgreSQL for pipelines (ADR 18).

-- name: lock_pipelines
-- Lock by a write, in order: a caller's transaction with an older snapshot of the pipeline then fails.
with locked as materialized (
    select pipeline.id
    from dibs_pipelines pipeline
    where pipeline.id {in_ids:ids}
    order by pipeline.id
    for update
)
update dibs_pipelines pipeline
set on_failed = pipeline.on_failed
where pipeline.id = any (array(select locked.id from locked))
returning pipeline.id

-- name: free_pipelines
-- The same without waiting.
with locked as materialized (
    select pipeline.id
    from dibs_pipelines pipeline
    where pipeline.id {in_ids:ids}
    order by pipeline.id
    for update skip locked
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
where id = any (
    array(
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
        for update of old skip locked
    )
)
returning id
