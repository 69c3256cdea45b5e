-- Statements of SQLite, where a statement that writes locks the whole file.

-- name: claim
-- A relay claims from the heads: of each key, and of the messages without one, the oldest that is free.
with recursive
{>candidates},
heads as materialized (
    select head.position, head.broker, head.message_key
    from candidates
    join {outbox} as head on head.position = candidates.position
    where {free:head}
    order by head.position
    limit :limit
),
-- Follow each key from its head while the next message is free, an equal share for each key.
behind as (
    select heads.position, heads.broker, heads.message_key, 1 as number
    from heads
    union all
    select follower.position, follower.broker, follower.message_key, behind.number + 1
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
    where behind.number < :limit / (select count(*) from heads)
      and {free:follower}
)
update {outbox}
set token = (select counter.seq from sqlite_sequence as counter where counter.name = '{name}') + 1,
    {>claim_columns}
where position in (select behind.position from behind)
returning {columns}

-- fragment: candidates
-- Read the oldest open messages, a few batches of them.
walk as (
    select message.position, message.broker, message.message_key, {free:message} as free
    from {outbox} as message
    where message.open_broker = :broker
    order by message.position
    limit :window
),
-- Of these, keep the oldest message of each key if it is free.
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
{>keys_and_free},
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
    select without_key.position
    from without_key
)

-- name: advance_tokens
-- Tokens come from the counter of the positions, which never goes back.
update sqlite_sequence
set seq = seq + 1
where name = '{name}'

-- name: files
select name, file from pragma_database_list

-- name: tables
select count(*) as found
from {master}
where type = 'table' and name in ('{name}', '{inbox_name}')
