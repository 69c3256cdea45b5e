-- How MariaDB and MySQL answer: lock, then update, in one transaction; an update answers nothing, so one asks.
--
-- Rows are reached by the index that is named: on a small table the optimizer would read all of it, and wait for
-- whoever has just published something and not committed yet.

-- name: publish
insert into {outbox} (
    message_id, broker, topic, message_key, payload, headers,
    status, attempts, max_attempts, available_at, created_at
)
values (
    :id, :broker, :topic, :key, :payload, :headers,
    'pending', 0, :max_attempts, {now}, {now}
)
on duplicate key update message_id = message_id

-- name: old
-- What is open, in its order, as far as a few batches; of these the oldest of each key, where it is free.
select walk.position
from (
    select step.position, step.broker, step.message_key, {free:step} as free
    from {outbox} as step force index (`{name}_open`)
    where step.open_broker = :broker
    order by step.position
    limit :window
) as walk
where walk.free
  and (
      walk.message_key is null
      or walk.position = (
          select oldest.position
          from {outbox} as oldest force index (`{name}_key`)
          where oldest.open_broker = walk.broker
            and oldest.message_key = walk.message_key
          order by oldest.position
          limit 1
      )
  )
order by walk.position

-- name: oldest_of_keys
-- Much is open and it belongs to few keys, or others are at it: then all keys, by reading the index of what is open.
select min(oldest.position) as position
from {outbox} as oldest force index (`{name}_key`)
where oldest.open_broker = :broker
group by oldest.message_key

-- name: loose
select free.position
from {outbox} as free force index (`{name}_key`)
where free.open_broker = :broker
  and free.message_key is null
  and {free:free}
order by free.position
limit :window

-- name: heads
-- A key is entered only here, by its first message: whoever has that row locked has the key, and those who meet
-- the lock go on to the next key.
select head.position, head.broker, head.message_key
from {positions} as given
straight_join {outbox} as head force index (primary) on head.position = given.position
where head.open_broker is not null
  and {free:head}
limit :limit
for update skip locked

-- name: followers
-- From each head to the next of its key, and on, as often as there are places for it.
with recursive behind as (
    select nullif(head.position, 0) as position, head.broker, head.message_key, 0 as place
    from {positions} as given
    straight_join {outbox} as head force index (primary) on head.position = given.position
    union all
    select (
        select next.position
        from {outbox} as next force index (`{name}_key`)
        where next.open_broker = behind.broker
          and next.message_key = behind.message_key
          and next.position > behind.position
        order by next.position
        limit 1
    ), behind.broker, behind.message_key, behind.place + 1
    from behind
    where behind.position is not null
      and behind.place < :places
)
select follower.position, follower.broker, follower.message_key, {free:follower} as free
from behind
straight_join {outbox} as follower force index (primary) on follower.position = behind.position
where behind.place > 0
order by follower.position

-- name: take
-- Assignments are made one after the other here, each seeing those before it: attempts come last.
update {positions} as given
straight_join {outbox} as message force index (primary) on message.position = given.position
set message.status = case when message.attempts >= message.max_attempts then 'abandoned' else 'processing' end,
    message.locked_by = case when message.attempts < message.max_attempts then :worker end,
    message.locked_until = case when message.attempts < message.max_attempts then {later:lock} end,
    message.token = greatest(coalesce(message.token, 0) + 1, {age:'1970-01-01'}),
    message.error = case when message.attempts >= message.max_attempts then 'relay died' else message.error end,
    message.attempts = least(message.attempts + 1, message.max_attempts)
where message.open_broker is not null
  and message.available_at <= {now}
  and (message.locked_until is null or message.locked_until <= {now})

-- name: taken
select {columns:message}
from {positions} as given
straight_join {outbox} as message force index (primary) on message.position = given.position
where message.status = 'abandoned'
   or (message.status = 'processing' and message.locked_by = :worker)
order by message.position

-- name: mark_published
update {held} as held
straight_join {outbox} as message force index (primary) on message.position = held.position
set message.status = 'published',
    message.published_at = {now},
    message.locked_by = null,
    message.locked_until = null,
    message.error = null
where message.status = 'processing'
  and message.token = held.token

-- name: mark_failed
update {held} as held
straight_join {outbox} as message force index (primary) on message.position = held.position
set message.status = :status,
    message.attempts = message.attempts - :refund,
    message.available_at = {later:delay},
    message.locked_by = null,
    message.locked_until = null,
    message.error = :error
where message.status = 'processing'
  and message.token = held.token

-- name: release
update {held} as held
straight_join {outbox} as message force index (primary) on message.position = held.position
set message.status = 'pending',
    message.attempts = message.attempts - 1,
    message.locked_by = null,
    message.locked_until = null
where message.status = 'processing'
  and message.token = held.token

-- name: renew
update {held} as held
straight_join {outbox} as message force index (primary) on message.position = held.position
set message.locked_until = {later:lock}
where message.status = 'processing'
  and message.token = held.token

-- name: redrive_find
select message.position
from {outbox} as message
where message.message_id = :id
  and message.status = 'abandoned'
  and (:broker is null or message.broker = :broker)
for update

-- name: redrive_many_find
select message.position
from {outbox} as message
where message.open_broker is null
  and message.published_at is null
  and {only:message}
order by message.position
limit :batch
for update skip locked

-- name: reopen
update {positions} as given
straight_join {outbox} as message force index (primary) on message.position = given.position
set message.status = 'pending',
    message.attempts = 0,
    message.available_at = {now}
where message.status = 'abandoned'

-- name: prune_published_find
select old.position
from {outbox} as old
where old.published_at <= {earlier:age}
order by old.published_at, old.position
limit :batch
for update skip locked

-- name: prune_abandoned_find
select old.position
from {outbox} as old
where old.open_broker is null
  and old.published_at is null
  and old.created_at <= {earlier:age}
order by old.position
limit :batch
for update skip locked

-- name: remove
delete message
from {positions} as given
straight_join {outbox} as message force index (primary) on message.position = given.position
where message.open_broker is null

-- name: inbox_once
insert into {inbox} (consumer, message_id, mark, seen_at)
values (:consumer, :id, :mark, {now})
on duplicate key update mark = mark

-- name: inbox_seen
-- A locking read: it sees what was committed after this transaction first looked.
select seen.mark
from {inbox} as seen
where seen.consumer = :consumer
  and seen.message_id = :id
for update

-- name: inbox_old
select count(*) as number
from (select 1 from {inbox} as old where old.seen_at <= {earlier:age} limit :batch) as some

-- name: inbox_prune
delete from {inbox}
where seen_at <= {earlier:age}
limit :batch
