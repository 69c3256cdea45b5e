-- What the outbox asks of every database. PostgreSQL and SQLite answer most of it alike.

-- name: brokers
-- Those that something is open for, a few probes each; first the one whose oldest message waits the longest.
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
-- Fenced: whoever was overtaken changes nothing, and finds out by what comes back.
update {outbox}
set status = 'published',
    published_at = {now},
    locked_by = null,
    locked_until = null,
    error = null
where status = 'processing'
  and (position, token) in (select held.position, held.token from {held} as held)
returning position

-- name: mark_failed
update {outbox}
set status = :status,
    attempts = attempts - :refund,
    available_at = {later:delay},
    locked_by = null,
    locked_until = null,
    error = :error
where status = 'processing'
  and (position, token) in (select held.position, held.token from {held} as held)
returning position

-- name: release
-- Given back untried, with their attempt.
update {outbox}
set status = 'pending',
    attempts = attempts - 1,
    locked_by = null,
    locked_until = null
where status = 'processing'
  and (position, token) in (select held.position, held.token from {held} as held)
returning position

-- name: renew
update {outbox}
set locked_until = {later:lock}
where status = 'processing'
  and (position, token) in (select held.position, held.token from {held} as held)
returning position

-- name: standing
-- Which of them are in this status under the very token that we hold.
select message.position
from {held} as held
join {outbox} as message on message.position = held.position
where message.token = held.token
  and message.status = :status

-- name: look
select {columns:message}
from {outbox} as message
where message.message_id = cast(:id as {text})
order by message.position

-- name: find_unprocessed
select {columns:message}
from {outbox} as message
where message.open_broker is not null
  and (message.status <> 'processing' or message.locked_until <= {now})
  and {only:message}
order by message.position
limit :limit

-- name: find_open
-- Pending, failed or processing ones.
select {columns:message}
from {outbox} as message
where message.open_broker is not null
  and message.status = :status
  and {only:message}
order by message.position
limit :limit

-- name: find_abandoned
select {columns:message}
from {outbox} as message
where message.open_broker is null
  and message.published_at is null
  and {only:message}
order by message.position
limit :limit

-- name: find_published
-- The latest first: those before them are many, and done with.
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
-- How long the oldest message that is still to be published has been waiting, in microseconds.
select {age:message.created_at} as age
from {outbox} as message
where message.open_broker is not null
  and {of_broker:message}
order by message.position
limit 1

-- name: redrive
update {outbox}
set status = 'pending',
    attempts = 0,
    available_at = {now}
where message_id = cast(:id as {text})
  and status = 'abandoned'
  and (cast(:broker as {text}) is null or broker = cast(:broker as {text}))
returning position

-- name: redrive_many
update {outbox}
set status = 'pending',
    attempts = 0,
    available_at = {now}
where position in (
    select abandoned.position
    from {outbox} as abandoned
    where abandoned.open_broker is null
      and abandoned.published_at is null
      and {only:abandoned}
    order by abandoned.position
    limit :batch
)
returning position

-- name: prune_published
delete from {outbox}
where position in (
    select old.position
    from {outbox} as old
    where old.published_at <= {earlier:age}
    order by old.published_at, old.position
    limit :batch
    {skip_locked}
)
returning position

-- name: prune_abandoned
delete from {outbox}
where position in (
    select old.position
    from {outbox} as old
    where old.open_broker is null
      and old.published_at is null
      and old.created_at <= {earlier:age}
    order by old.position
    limit :batch
    {skip_locked}
)
returning position

-- name: inbox_prune
delete from {inbox}
where (consumer, message_id) in (
    select old.consumer, old.message_id
    from {inbox} as old
    where old.seen_at <= {earlier:age}
    limit :batch
)
returning consumer

-- name: inbox_seen
select seen.mark
from {inbox} as seen
where seen.consumer = :consumer
  and seen.message_id = :id
