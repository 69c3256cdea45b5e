-- Statements of PostgreSQL.

-- name: publish
-- The hint to relays is part of the transaction, so there is none for a message that was rolled back.
with stored as (
    insert into {outbox} (
        message_id, broker, topic, message_key, payload, headers,
        status, attempts, max_attempts, available_at, created_at
    )
    values (
        cast(:id as text), cast(:broker as text), cast(:topic as text), cast(:key as text),
        cast(:payload as text), cast(:headers as text),
        'pending', 0, cast(:max_attempts as integer), {now}, {now}
    )
    on conflict (message_id, broker) do nothing
    returning position
)
select stored.position, pg_notify('{channel}', cast(:broker as text)) as hint
from stored

-- name: claim
-- A relay claims from the heads: of each key, and of the messages without one, the oldest that is free.
with recursive
{>candidates},
-- Lock the heads: the relay that locks the head of a key holds the key, and the others skip it.
heads as materialized (
    select head.position, head.broker, head.message_key
    from {outbox} as head
    where head.position = any (array(select candidates.position from candidates))
      and head.open_broker is not null
      and {free:head}
    order by head.position
    limit :limit
    for update of head skip locked
),
-- Share the rest of the limit among the keys, for the messages right behind the heads.
share as (
    select :limit / greatest(count(*), 1) - 1 as size
    from heads
),
wanted as materialized (
    select heads.position, heads.broker, heads.message_key
    from heads
    union all
    select next.position, heads.broker, heads.message_key
    from share
    cross join heads
    cross join lateral (
        select follower.position,
            bool_and(
                follower.broker = heads.broker
                and follower.message_key = heads.message_key
                and {free:follower}
            ) over (order by follower.open_broker, follower.message_key, follower.position) as free
        from {outbox} as follower
        where follower.open_broker is not null
          and (follower.open_broker, follower.message_key, follower.position)
            > (heads.broker, heads.message_key, heads.position)
        order by follower.open_broker, follower.message_key, follower.position
        limit greatest((select size from share), 0)
    ) as next
    where heads.message_key is not null
      and next.free
),
claimed as (
    update {outbox} as message
    set token = (select nextval(pg_get_serial_sequence('{outbox}', 'position'))),
    {>claim_columns}
    where message.position = any (array(select wanted.position from wanted))
      and message.open_broker is not null
      and {free:message}
    returning {columns:message}
)
-- Return wanted rows that were not claimed, too: the messages behind them must not overtake them.
select wanted.position as wanted, wanted.broker as wanted_broker, wanted.message_key as wanted_key, claimed.*
from wanted
left join claimed on claimed.position = wanted.position
order by wanted.position

-- fragment: candidates
-- Read the oldest open messages, a few batches of them, row by row: only one index can serve this form. For a
-- plain `order by … limit` the planner may sort all open messages, or read past all published ones.
walk as (
    select cast(0 as bigint) as position, cast(:broker as text) as broker, cast(null as text) as message_key,
        false as free, 0 as number
    union all
    select next.*, walk.number + 1
    from walk
    cross join lateral (
        select message.position, cast(message.broker as text), cast(message.message_key as text), {free:message}
        from {outbox} as message
        where message.open_broker is not null
          and (message.open_broker, message.position) > (cast(:broker as text), walk.position)
        order by message.open_broker, message.position
        limit 1
    ) as next
    where walk.number < cast(:window as bigint)
      and walk.broker = cast(:broker as text)
),
-- Of these, keep the oldest message of each key if it is free.
old as materialized (
    select walk.position
    from walk
    where walk.free
      and walk.broker = cast(:broker as text)
      and (
          walk.message_key is null
          or walk.position = (
              select oldest.position
              from {outbox} as oldest
              where oldest.open_broker is not null
                and (oldest.open_broker, oldest.message_key, oldest.position) > (walk.broker, walk.message_key, 0)
              order by oldest.open_broker, oldest.message_key, oldest.position
              limit 1
          )
      )
),
{>keys_and_free},
candidates as materialized (
    select old.position
    from old
    union
    select (
        select oldest.position
        from {outbox} as oldest
        where oldest.open_broker is not null
          and (oldest.open_broker, oldest.message_key, oldest.position)
            > (cast(:broker as text), keys.message_key, 0)
        order by oldest.open_broker, oldest.message_key, oldest.position
        limit 1
    )
    from keys
    where keys.message_key is not null
    union
    select without_key.position
    from without_key
)
