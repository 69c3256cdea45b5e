-- How PostgreSQL answers.

-- name: publish
-- The hint to relays travels in the same transaction: nobody hears of a message that was rolled back.
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
select stored.position, pg_notify('{channel}', cast(:broker as text)) as told
from stored

-- name: claim
-- What is open, one by one in its order, as far as a few batches. Said like this, there is one index that serves it:
-- by its statistics the planner would now sort all that is open, now walk past all that was ever published.
with recursive walk as (
    select cast(0 as bigint) as position, cast(:broker as text) as broker, cast(null as text) as message_key,
        false as free, 0 as place
    union all
    select next.*, walk.place + 1
    from walk
    cross join lateral (
        select step.position, cast(step.broker as text), cast(step.message_key as text), {free:step}
        from {outbox} as step
        where step.open_broker is not null
          and (step.open_broker, step.position) > (cast(:broker as text), walk.position)
        order by step.open_broker, step.position
        limit 1
    ) as next
    where walk.place < cast(:window as bigint)
      and walk.broker = cast(:broker as text)
),
-- Of these the oldest of each key, where it is free.
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
-- Too few: much is open and it belongs to few keys, or others are at it. Then key by key, one probe each.
keys as (
    select min(first.message_key) as message_key
    from {outbox} as first
    where first.open_broker = cast(:broker as text)
      and (select count(*) from old) < :limit
    union all
    select (
        select min(next.message_key)
        from {outbox} as next
        where next.open_broker = cast(:broker as text)
          and next.message_key > keys.message_key
    )
    from keys
    where keys.message_key is not null
),
loose as (
    select free.position
    from {outbox} as free
    where free.open_broker = cast(:broker as text)
      and free.message_key is null
      and {free:free}
      and (select count(*) from old) < :limit
    order by free.position
    limit cast(:window as bigint)
),
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
    select loose.position
    from loose
),
-- A key is entered only here, by its first message: whoever has that row locked has the key, and those who meet
-- the lock go on to the next key.
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
-- Places that are left over are shared among the keys, for the messages right behind.
share as (
    select :limit / greatest(count(*), 1) - 1 as places
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
        limit greatest((select places from share), 0)
    ) as next
    where heads.message_key is not null
      and next.free
),
-- Who was tried as often as allowed and never came back is not tried again.
taken as (
    update {outbox} as message
    set status = case when message.attempts >= message.max_attempts then 'abandoned' else 'processing' end,
        locked_by = case when message.attempts < message.max_attempts then cast(:worker as text) end,
        locked_until = case when message.attempts < message.max_attempts then {later:lock} end,
        token = (select nextval(pg_get_serial_sequence('{outbox}', 'position'))),
        error = case when message.attempts >= message.max_attempts then 'relay died' else message.error end,
        attempts = least(message.attempts + 1, message.max_attempts)
    where message.position = any (array(select wanted.position from wanted))
      and message.open_broker is not null
      and {free:message}
    returning {columns:message}
)
-- A row that was wanted and not taken is answered, too: those behind it must not go before it.
select wanted.position as wanted, wanted.broker as wanted_broker, wanted.message_key as wanted_key, taken.*
from wanted
left join taken on taken.position = wanted.position
order by wanted.position

-- name: inbox_once
insert into {inbox} (consumer, message_id, mark, seen_at)
values (:consumer, :id, :mark, {now})
on conflict (consumer, message_id) do nothing
returning mark
