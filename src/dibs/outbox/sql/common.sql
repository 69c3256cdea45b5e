-- Statements that databases share; a block of the same name in a database's own file replaces one of these.

-- name: publish
insert into {outbox} (
    message_id, broker, topic, message_key, payload, headers,
    status, attempts, max_attempts, available_at, created_at
)
values (
    :id, :broker, :topic, :key, :payload, :headers,
    'pending', 0, :max_attempts, {now}, {now}
)
{unless_stored}

-- name: brokers
-- Brokers with open messages, by a few index probes each; first the broker with the oldest message.
with recursive found as (
    select min(first.open_broker) as broker
    from {outbox} as first
    union all
    select (select min(next.open_broker) from {outbox} as next where next.open_broker > found.broker)
    from found
    where found.broker is not null
)
select found.broker,
    (select min(first.position) from {outbox} as first where first.open_broker = found.broker) as oldest
from found
where found.broker is not null
order by oldest

-- name: mark_published
-- A message that is no longer held under this token is left alone, and its position is not returned.
update {claimed_rows}
set status = 'published',
    published_at = {now},
    locked_by = null,
    locked_until = null,
    error = null
{>if_held}

-- name: mark_failed
update {claimed_rows}
set status = :status,
    attempts = attempts - :refund,
    available_at = {later:delay},
    locked_by = null,
    locked_until = null,
    error = :error
{>if_held}

-- name: release
-- Give messages back untried, with their attempt.
update {claimed_rows}
set status = 'pending',
    attempts = attempts - 1,
    locked_by = null,
    locked_until = null
{>if_held}

-- name: renew
update {claimed_rows}
set locked_until = {later:lock}
{>if_held}

-- fragment: if_held
where status = 'processing'
  and {is_held}
{returning}

-- name: in_status
-- Find the messages that are in this status already, under the token of the caller.
select message.position
from {held} as held
join {outbox} as message on message.position = held.position
where message.token = held.token
  and message.status = :status

-- name: get
select {columns:message}
from {outbox} as message
where message.message_id = cast(:id as {text})
order by message.position

-- fragment: in_order
  and {only:message}
order by message.position
limit :limit

-- name: find_unprocessed
select {columns:message}
from {outbox} as message
where message.open_broker is not null
  and (message.status <> 'processing' or message.locked_until <= {now})
{>in_order}

-- name: find_open
-- Find pending, failed or processing messages.
select {columns:message}
from {outbox} as message
where message.open_broker is not null
  and message.status = :status
{>in_order}

-- name: find_abandoned
select {columns:message}
from {outbox} as message
where message.open_broker is null
  and message.published_at is null
{>in_order}

-- name: find_published
-- The latest first: there are many published messages, and old ones seldom matter.
select {columns:message}
from {outbox} as message
where message.published_at is not null
  and {only:message}
order by message.published_at desc, message.position desc
limit :limit

-- name: counts
select message.status, count(*) as number
from {outbox} as message
where {of_broker:message}
group by message.status

-- name: counts_by_broker
select message.broker, message.status, count(*) as number
from {outbox} as message
group by message.broker, message.status

-- name: oldest
-- How long the oldest unpublished message has been waiting, in microseconds.
select {age:message.created_at} as age
from {outbox} as message
where message.open_broker is not null
  and {of_broker:message}
order by message.position
limit 1

-- name: redrive_find
-- Where a write can't return rows, a block `…_find` locks them first, here and below.
select message.position
from {outbox} as message
where message.message_id = cast(:id as {text})
  and message.status = 'abandoned'
  and {of_broker:message}
{lock}

-- name: redrive
update {outbox}
set status = 'pending',
    attempts = 0,
    available_at = {now}
where message_id = cast(:id as {text})
  and status = 'abandoned'
  and (cast(:broker as {text}) is null or broker = cast(:broker as {text}))
returning position

-- fragment: abandoned
select message.position
from {outbox} as message
where message.open_broker is null
  and message.published_at is null
  and {only:message}
order by message.position
limit :batch
{skip_locked}

-- name: redrive_many_find
{>abandoned}

-- name: redrive_many
update {outbox}
set status = 'pending',
    attempts = 0,
    available_at = {now}
where position in ({>abandoned})
returning position

-- fragment: old_published
select old.position
from {outbox} as old
where old.published_at <= {earlier:age}
order by old.published_at, old.position
limit :batch
{skip_locked}

-- name: prune_published_find
{>old_published}

-- name: prune_published
delete from {outbox}
where position in ({>old_published})
returning position

-- fragment: old_abandoned
select old.position
from {outbox} as old
where old.open_broker is null
  and old.published_at is null
  and old.created_at <= {earlier:age}
order by old.position
limit :batch
{skip_locked}

-- name: prune_abandoned_find
{>old_abandoned}

-- name: prune_abandoned
delete from {outbox}
where position in ({>old_abandoned})
returning position

-- name: inbox_once
insert into {inbox} (consumer, message_id, mark, seen_at)
values (:consumer, :id, :mark, {now})
on conflict (consumer, message_id) do nothing
returning mark

-- name: inbox_prune
delete from {inbox}
where (consumer, message_id) in (
    select old.consumer, old.message_id
    from {inbox} as old
    where old.seen_at <= {earlier:age}
    limit :batch
)
returning consumer

-- fragment: keys_and_free
-- If the oldest open messages hold too few candidates (few keys, or held by other relays), search all keys
-- instead, by one index probe each, and the free messages without a key.
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
without_key as (
    select free.position
    from {outbox} as free
    where free.open_broker = cast(:broker as text)
      and free.message_key is null
      and {free:free}
      and (select count(*) from old) < :limit
    order by free.position
    limit cast(:window as bigint)
)

-- fragment: claim_columns
-- What a claim writes. A message that is out of attempts, because each of its relays died, is abandoned instead.
-- MySQL assigns from left to right, and each assignment sees the ones before it: attempts come last.
status = case when attempts >= max_attempts then 'abandoned' else 'processing' end,
    locked_by = case when attempts < max_attempts then cast(:worker as {text}) end,
    locked_until = case when attempts < max_attempts then {later:lock} end,
    error = case when attempts >= max_attempts then 'relay died' else error end,
    attempts = {least}(attempts + 1, max_attempts)
