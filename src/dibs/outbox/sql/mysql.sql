-- Statements of MariaDB and MySQL: lock, update, read, in one transaction, as an update returns no rows.
--
-- Indexes are forced: in a small table the optimizer would read all rows, and wait for the transaction of a caller
-- that has published a message and not committed yet.

-- name: oldest_free
-- Read the oldest open messages, a few batches of them; keep the oldest of each key if it is free.
select walk.position
from (
    select message.position, message.broker, message.message_key, {free:message} as free
    from {outbox} as message force index (`{name}_open`)
    where message.open_broker = :broker
    order by message.position
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
-- The oldest message of every key, by reading the whole index of open messages. Needed if the oldest open messages
-- hold too few candidates: few keys, or held by other relays.
select min(oldest.position) as position
from {outbox} as oldest force index (`{name}_key`)
where oldest.open_broker = :broker
group by oldest.message_key

-- name: free_without_key
select free.position
from {outbox} as free force index (`{name}_key`)
where free.open_broker = :broker
  and free.message_key is null
  and {free:free}
order by free.position
limit :window

-- name: heads
-- Lock the heads: the relay that locks the head of a key holds the key, and the others skip it.
select head.position, head.broker, head.message_key
from {positions} as given
straight_join {outbox} as head force index (primary) on head.position = given.position
where head.open_broker is not null
  and {free:head}
limit :limit
for update {of:head} skip locked

-- name: followers
-- Follow each key from its head, for its share of the limit.
with recursive behind as (
    select nullif(head.position, 0) as position, head.broker, head.message_key, 0 as number
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
    ), behind.broker, behind.message_key, behind.number + 1
    from behind
    where behind.position is not null
      and behind.number < :share
)
select follower.position, follower.broker, follower.message_key, {free:follower} as free
from behind
straight_join {outbox} as follower force index (primary) on follower.position = behind.position
where behind.number > 0
order by follower.position

-- name: claim_positions
update {positions} as given
straight_join {outbox} as message force index (primary) on message.position = given.position
set token = greatest(coalesce(token, 0) + 1, {age:'1970-01-01'}),
    {>claim_columns}
where message.open_broker is not null
  and {free:message}

-- name: claimed
select {columns:message}
from {positions} as given
straight_join {outbox} as message force index (primary) on message.position = given.position
where message.status = 'abandoned'
   or (message.status = 'processing' and message.locked_by = :worker)
order by message.position

-- name: reopen
update {positions} as given
straight_join {outbox} as message force index (primary) on message.position = given.position
set message.status = 'pending',
    message.attempts = 0,
    message.available_at = {now}
where message.status = 'abandoned'

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
-- A locking read sees rows that were committed after the snapshot of this transaction.
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
