-- How SQLite answers. A statement that writes is alone with the file from its first row on.

-- name: publish
insert into {outbox} (
    message_id, broker, topic, message_key, payload, headers,
    status, attempts, max_attempts, available_at, created_at
)
values (
    :id, :broker, :topic, :key, :payload, :headers,
    'pending', 0, :max_attempts, {now}, {now}
)
on conflict (message_id, broker) do nothing

-- name: claim
-- What is open, in its order, as far as a few batches.
with recursive walk as (
    select step.position, step.broker, step.message_key, {free:step} as free
    from {outbox} as step
    where step.open_broker = :broker
    order by step.position
    limit :window
),
-- Of these the oldest of each key, where it is free.
old as materialized (
    select walk.position
    from walk
    where walk.free
      and (
          walk.message_key is null
          or walk.position = (
              select min(oldest.position)
              from {outbox} as oldest
              where oldest.open_broker = walk.broker
                and oldest.message_key = walk.message_key
          )
      )
),
-- Too few: much is open and it belongs to few keys, or others are at it. Then key by key, one probe each.
keys as (
    select min(first.message_key) as message_key
    from {outbox} as first
    where first.open_broker = :broker
      and (select count(*) from old) < :limit
    union all
    select (
        select min(next.message_key)
        from {outbox} as next
        where next.open_broker = :broker
          and next.message_key > keys.message_key
    )
    from keys
    where keys.message_key is not null
),
loose as (
    select free.position
    from {outbox} as free
    where free.open_broker = :broker
      and free.message_key is null
      and {free:free}
      and (select count(*) from old) < :limit
    order by free.position
    limit :window
),
candidates as (
    select old.position
    from old
    union
    select (
        select min(oldest.position)
        from {outbox} as oldest
        where oldest.open_broker = :broker
          and oldest.message_key = keys.message_key
    )
    from keys
    where keys.message_key is not null
    union
    select loose.position
    from loose
),
heads as materialized (
    select head.position, head.broker, head.message_key
    from candidates
    join {outbox} as head on head.position = candidates.position
    where {free:head}
    order by head.position
    limit :limit
),
-- From each head to the next of its key, and on, as long as each one is free; an equal share for each key.
behind as (
    select heads.position, heads.broker, heads.message_key, 1 as place
    from heads
    union all
    select follower.position, follower.broker, follower.message_key, behind.place + 1
    from behind
    join {outbox} as follower
      on follower.position = (
          select next.position
          from {outbox} as next
          where next.open_broker = behind.broker
            and next.message_key = behind.message_key
            and next.position > behind.position
          order by next.position
          limit 1
      )
    where behind.place < :limit / (select count(*) from heads)
      and {free:follower}
)
update {outbox}
set status = case when attempts >= max_attempts then 'abandoned' else 'processing' end,
    locked_by = case when attempts < max_attempts then :worker end,
    locked_until = case when attempts < max_attempts then {later:lock} end,
    token = (select counter.seq from sqlite_sequence as counter where counter.name = '{name}') + 1,
    error = case when attempts >= max_attempts then 'relay died' else error end,
    attempts = min(attempts + 1, max_attempts)
where position in (select behind.position from behind)
returning {columns}

-- name: count_on
-- Tokens come from the counter of the positions, which never goes back.
update sqlite_sequence
set seq = seq + 1
where name = '{name}'

-- name: inbox_once
insert into {inbox} (consumer, message_id, mark, seen_at)
values (:consumer, :id, :mark, {now})
on conflict (consumer, message_id) do nothing
returning mark

-- name: files
select name, file from pragma_database_list

-- name: tables
select count(*) as found
from {master}
where type = 'table' and name in ('{name}', '{inbox_name}')
