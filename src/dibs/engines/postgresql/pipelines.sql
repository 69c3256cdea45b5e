-- PostgreSQL's words for pipelines where they are its own (ADR 18).

-- name: lock_pipelines
-- By a write, in order: a transaction of the caller's that still sees an old state of the pipeline fails.
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
-- The same for who must not wait.
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
-- Not who holds a train, nor whose key still lasts, nor whose result somebody who waits may ask for.
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
