-- MySQL's and MariaDB's blocks for trains and slots (ADR 12). jobs/gates.py decides, gates.py says which blocks
-- make an answer.
--
-- The rows of gates are locked first, in the order of their keys. The jobs at a gate are then found in an index
-- without a lock, and locked by primary key: a transaction that locked an entry of that index and then waited for
-- the row would meet a claimer that has the row and wants to change the entry. A caller's transaction may have an
-- old snapshot: where a gate has changed since, the read is a locking one, `…_newest`.

-- fragment: given_gates
json_table(
    :gates,
    '$[*]' columns (
        sort varchar(5) character set utf8mb4 collate {names} path '$[0]',
        name varchar(700) character set utf8mb4 collate {names} path '$[1]',
        last_position bigint path '$[2]',
        held_by char(32) character set ascii path '$[3]',
        offer_ends datetime(6) path '$[4]'
    )
) given

-- fragment: each_gate
{>given_gates}
straight_join dibs_gates gate force index (primary) on gate.sort = given.sort and gate.name = given.name

-- name: lock_gates
-- Makes a row that is not there, or was deleted a moment ago: -1 says that it is new. Changes are counted from
-- another number each time.
insert into dibs_gates (sort, name, last_position, changes)
select given.sort, given.name, -1, cast(1000000 * unix_timestamp(now(6)) as signed)
from {>given_gates}
on duplicate key update changes = abs(dibs_gates.changes) + 1

-- name: gates_seen
-- Before they are locked, in a caller's transaction.
select gate.sort, gate.name, gate.changes
from {>each_gate}

-- name: doubt_gates
-- This transaction sees what it writes, whatever its snapshot is. The sign says not to trust the snapshot.
update {>each_gate}
set gate.changes = -abs(gate.changes)

-- name: locked_gates
select {>gate_columns}
from {>each_gate}
for update {of:gate}

-- name: wait_briefly
-- MySQL has no limit for the locks of one statement. The end of the transaction sets it back.
/*!80017 set session innodb_lock_wait_timeout = 1 */ /*M! do 0 */

-- name: gates_soon
-- Waits for a second and then fails, so that the caller tries again later.
select {>gate_columns}
from {>each_gate}
for update {of:gate} /*M! wait 1 */

-- name: free_gates
-- Upkeep skips gates that another transaction has locked.
select {>gate_columns}
from {>each_gate}
for update {of:gate} skip locked

-- fragment: gate_columns
gate.sort, gate.name, gate.last_position, gate.held_by, gate.offer_ends, gate.changes, {now} as now

-- name: last_position
-- Of a gate that has just been made. It has jobs only if an operator deleted its row.
select coalesce(max(abs(job.position)), 0) as last_position
from dibs_jobs job force index (dibs_jobs_gate)
where job.gate = :gate

-- name: note_gates
update {>each_gate}
set
    gate.last_position = given.last_position,
    gate.held_by = unhex(given.held_by),
    gate.offer_ends = given.offer_ends,
    gate.changes = gate.changes + sign(gate.changes)

-- name: forget_gates
delete gate
from {>each_gate}

-- name: train_heads
select
    given.gate,
    ({>head_id}) as id,
    ({>head_position}) as position,
    ({>head_state}) as state
from {>given_trains}

-- name: train_heads_newest
select
    given.gate,
    ({>head_id} lock in share mode) as id,
    ({>head_position} lock in share mode) as position,
    ({>head_state} lock in share mode) as state
from {>given_trains}

-- fragment: given_trains
json_table(
    :gates, '$[*]' columns (gate varchar(701) character set utf8mb4 collate {names} path '$')
) given

-- fragment: head_id
select head.id {>head}

-- fragment: head_position
select head.position {>head}

-- fragment: head_state
select head.state {>head}

-- fragment: head
-- Ordered by all of the index: by `position` alone MySQL sorts the whole train.
from dibs_jobs head force index (dibs_jobs_gate)
where head.gate = given.gate and head.place = 0 and head.position is not null
order by head.gate, head.place, head.position
limit 1

-- name: open_heads
update {>each_job}
set job.state = if(job.run_at <= {now}, 'ready', 'scheduled')
where job.state = 'blocked'

-- name: slot_running
{>running_in_slot}

-- name: slot_running_newest
{>running_in_slot}
lock in share mode

-- fragment: running_in_slot
select {>at_gate}
from dibs_jobs job force index (dibs_jobs_gate)
where job.gate = :gate and job.place in (40, 41)

-- name: slot_line
-- The first blocked jobs of the ones that never started, the first of the others, and all ready ones.
(select {>at_gate} {>blocked_anew})
union all
(select {>at_gate} {>blocked_again})
union all
(select {>at_gate} {>ready_of_slot})

-- name: slot_line_newest
(select {>at_gate} {>blocked_anew} lock in share mode)
union all
(select {>at_gate} {>blocked_again} lock in share mode)
union all
(select {>at_gate} {>ready_of_slot} lock in share mode)

-- fragment: at_gate
job.id, job.state, job.position, job.slot_limit, job.priority, job.run_at, job.queue, job.kind, job.token,
    job.cancel_reason is not null as asked

-- fragment: blocked_anew
from dibs_jobs job force index (dibs_jobs_gate)
where job.gate = :gate and job.place = 20 and job.position is not null
order by job.position, job.precedence, job.run_at, job.id
limit :limit

-- fragment: blocked_again
from dibs_jobs job force index (dibs_jobs_gate)
where job.gate = :gate and job.place = 21 and job.position is not null
order by job.position, job.precedence, job.run_at, job.id
limit :limit

-- fragment: ready_of_slot
from dibs_jobs job force index (dibs_jobs_gate)
where job.gate = :gate and job.place in (30, 31)

-- name: lock_ready
-- A claimer may have locked a ready job: wait for it, and read what the job is then.
select {>at_gate}
from {>each_job}
for update {of:job}

-- name: slot_in_use
{>any_of_slot}

-- name: slot_in_use_newest
{>any_of_slot}
lock in share mode

-- fragment: any_of_slot
select 1 as there
from dibs_jobs job force index (dibs_jobs_gate)
where job.gate = :gate and job.position is not null
limit 1

-- name: clash
-- Jobs from another store can't have their old positions on this train if one of them is taken, if the running job
-- here would be behind them, or while the train is held.
select
    gate.last_position,
    gate.held_by is not null
    or exists (
        select 1
        from json_table(:positions, '$[*]' columns (position bigint path '$')) given
        straight_join dibs_jobs job force index (dibs_jobs_gate)
            on job.gate = concat('t', :name) and job.place = 0 and job.position = given.position
    )
    or exists (
        select 1
        from (
            select job.state, job.position
            from dibs_jobs job force index (dibs_jobs_gate)
            where job.gate = concat('t', :name) and job.place = 0 and job.position is not null
            order by job.position
            limit 1
        ) head
        where head.state = 'running' and head.position >= :first
    ) as is_clash
from dibs_gates gate
where gate.sort = 'train' and gate.name = :name

-- name: close_train
-- A job from another store may be before the one that is ready here.
update dibs_jobs
set state = 'blocked'
where gate = :gate and state in ('ready', 'scheduled')

-- name: set_states
update {>each_job}
set job.state = :state

-- name: place
update json_table(
    :places,
    '$[*]' columns (id char(32) character set ascii path '$[0]', position bigint path '$[1]')
) given
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
set job.position = given.position

-- name: slot_members
{>members}

-- name: slot_members_newest
{>members}
lock in share mode

-- name: slot_waiting
{>waiting_members}

-- name: slot_waiting_newest
{>waiting_members}
lock in share mode

-- fragment: members
-- The jobs that were there before this one, running ones first.
select {>at_gate}
from dibs_jobs job force index (dibs_jobs_gate)
where job.gate = :gate and job.position is not null and job.id <> unhex(:job)
order by job.state <> 'running', job.position, job.precedence, job.run_at, job.id
limit :limit

-- fragment: waiting_members
select job.id
from dibs_jobs job force index (dibs_jobs_gate)
where job.gate = :gate
  and job.position is not null
  and job.state <> 'running'
  and job.id <> unhex(:job)

-- name: gates_of
-- The gates of these jobs, read without a lock; the jobs are read again once the gates are locked.
select job.train, job.slot
from {>each_job}
where job.gate is not null

-- name: gates_of_ended
select job.train, job.slot
from {>given_ids}
straight_join dibs_finished job force index (primary) on job.id = unhex(given.id)
where job.train is not null or job.slot is not null

-- name: gates_of_keys
select job.train, job.slot
from {>each_keyed}
where job.gate is not null

-- fragment: each_keyed
{>given_keys}
straight_join dibs_jobs job force index (dibs_jobs_unique_key) on job.unique_key = given.name

-- fragment: each_job
{>given_ids}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)

-- fragment: given_keys
json_table(
    :keys,
    '$[*]' columns (name varchar(200) character set utf8mb4 collate {names} path '$')
) given

-- name: key_holders
-- The jobs that have these unique keys, read without a lock: a running job with a locked row would lose its lease.
select job.id as holder, job.unique_key
from {>each_keyed}

-- name: running_holders
-- Of these only the running ones. An enqueue that replaces a waiting job locks that job alone later; two that had
-- locked it together before would block each other.
select job.id as holder, job.unique_key
from {>each_keyed}
where job.state = 'running'

-- name: key_holders_newest
-- The jobs that still have them. Only columns of the index are read, so its entries are locked and not the rows: a
-- job that has a key can be claimed and renewed, but not settled. Does not wait for a job that is just being
-- settled: of two that had waited for it together each would block the insert of the other.
select job.id as holder, job.unique_key
from {>each_keyed}
/*M! lock in share mode skip locked */ /*!80017 for share of job skip locked */

-- name: free_keys
-- The keys that no open transaction has met. Read before the rows are locked, because a locked row can't be
-- renewed.
select job.unique_key
from {>each_keyed}
for update {of:job} skip locked

-- name: keys_held
select job.id, job.unique_key
from {>given_claims}
straight_join dibs_jobs job force index (primary) on {>is_held} and job.unique_key is not null

-- name: lock_keys
-- An enqueue that meets a key locks its entry and then the row. A settlement must lock in the same order: with the
-- row first, and then the entry that it deletes, the two would deadlock.
select job.unique_key
from {>each_keyed}
for update {of:job}

-- name: keys_soon
select job.unique_key
from {>each_keyed}
for update {of:job} /*M! wait 1 */

-- name: lasting
-- Finished jobs that keep their unique keys for a time. Read after the insert, so that a job that finished
-- meanwhile is seen.
select {>lasting_columns}
from {>lasting_keys}

-- name: lasting_newest
select {>lasting_columns}
from {>lasting_keys}
{share:job}

-- fragment: lasting_columns
job.id as holder, job.unique_key

-- fragment: lasting_keys
{>given_keys}
straight_join dibs_finished job force index (dibs_finished_lasting)
    on job.key_is_free = false and job.unique_key = given.name and job.unique_until > {now}

-- name: replace
{>replace}

-- name: update
-- Of a waiting job: its gate, if it has one, decides what follows. One that waits for its parents only notes it.
update dibs_jobs
set
    priority = coalesce(:priority, priority),
    run_at = coalesce(:run_at, run_at),
    state = case
        when (state = 'blocked' and position is null) or train is not null then 'blocked'
        when run_at > {now} then 'scheduled'
        when slot is not null then 'blocked'
        else 'ready'
    end
where id = unhex(:job) and state in ('scheduled', 'blocked', 'ready')

-- name: offers_over
select gate.sort, gate.name
from dibs_gates gate force index (dibs_gates_offers)
where gate.offer_ends <= {now}
order by gate.offer_ends
limit :limit

-- name: due
-- Jobs of slots are staged at their gates.
select job.id
from dibs_jobs job force index (dibs_jobs_due)
where job.due_at <= {now} and job.slot is null
order by job.due_at
limit :limit
for update skip locked

-- name: due_in_slots
-- Among the first that are due: many plain jobs ahead are not walked.
select due.id, due.slot
from (
    select job.id, job.slot
    from dibs_jobs job force index (dibs_jobs_due)
    where job.due_at <= {now}
    order by job.due_at
    limit :limit
) due
where due.slot is not null

-- name: lock_due
select job.id, job.slot
from {>given_ids}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id) and job.due_at <= {now}
for update {of:job} skip locked

-- name: expired
select {>expired_columns}
from dibs_jobs job force index (dibs_jobs_leases)
where job.lease_until <= {now} and job.gate is null
order by job.lease_until
limit :limit
for update skip locked

-- name: expired_at_gates
select dead.id, dead.train, dead.slot
from (
    select job.id, job.train, job.slot, job.gate
    from dibs_jobs job force index (dibs_jobs_leases)
    where job.lease_until <= {now}
    order by job.lease_until
    limit :limit
) dead
where dead.gate is not null

-- name: lock_expired
select {>expired_columns}
from {>given_ids}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id) and job.lease_until <= {now}
for update {of:job} skip locked

-- fragment: expired_columns
job.id, job.kind, job.queue, job.worker, job.token, job.attempts, job.max_attempts,
    job.errors, job.cancel_reason, {>place_columns}, {now} as now

-- fragment: place_columns
job.train, job.slot, job.position, job.on_cancelled, job.on_failed

-- name: behind_slot
select job.queue, job.slot, job.slot_limit
from dibs_jobs job
where job.id = unhex(:job) and job.state = 'blocked' and job.slot is not null and job.position is not null

-- name: lock_behind_slot
select {>locked}
from dibs_jobs job
where job.id = unhex(:job) and job.state = 'blocked' and job.slot is not null and job.position is not null
for update

-- name: live
select
    job.id,
    job.state,
    job.token,
    case when job.state = 'running' then job.worker end as worker,
    job.lease_until <= {now_minus:stale_after} as stale,
    {>place_columns}
from {>each_job}
for update {of:job}

-- name: held
-- Fenced by the token: a claim that no longer holds locks nothing, and so writes nothing.
select job.id, job.token, job.cancel_reason, {>place_columns}, {now} as now
from {>given_claims}
straight_join dibs_jobs job force index (primary) on {>is_held}
for update {of:job}

-- name: sweep_returned
update {>given_ends}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
set
    job.state = if(job.slot is null, 'ready', 'blocked'),
    job.worker = null,
    job.lease_until = null,
    job.errors = given.errors

-- name: retry
-- A job with a unique key that is taken stays where it is.
{>insert_retried:job}
from {>given_ids}
straight_join dibs_finished job force index (primary) on job.id = unhex(given.id)
for update {of:job}
on duplicate key update stored_by = dibs_jobs.stored_by

-- name: hurry
update {>each_job}
set job.state = if(job.slot is null, 'ready', 'blocked'), job.run_at = {now}

-- name: recover
update dibs_jobs
set {>recovered}
where id = unhex(:job)

-- name: held_by
-- The trains that these jobs hold.
select gate.sort, gate.name
from {>given_ids}
straight_join dibs_gates gate force index (dibs_gates_held) on gate.held_by = unhex(given.id)

-- name: gates_after
select gate.sort, gate.name
from dibs_gates gate
where :after_sort is null
   or gate.sort > :after_sort
   or (gate.sort = :after_sort and gate.name > :after_name)
order by gate.sort, gate.name
limit :limit

-- name: gates_named
-- Names that jobs have, one after another: one step into the index for each, however many jobs there are. A gate
-- that is not there, although a job has a position at it, was deleted by an operator.
select
    substring(named.gate, 2) as name,
    not exists (
        select 1 from dibs_gates gate where gate.sort = :sort and gate.name = substring(named.gate, 2)
    )
    and exists (
        select 1
        from dibs_jobs job force index (dibs_jobs_gate)
        where job.gate = named.gate and job.position is not null
    ) as is_lost
from (
    select job.gate
    from dibs_jobs job force index (dibs_jobs_gate)
    where job.gate > concat(left(:sort, 1), :after) and job.gate < if(:sort = 'train', 'u', 't')
    group by job.gate
    order by job.gate
    limit :limit
) named
order by named.gate

-- name: gates
select
    gate.name,
    coalesce(
        gate.held_by,
        case gate.sort
            when 'train' then (
                select job.id
                from dibs_jobs job force index (dibs_jobs_gate)
                where job.gate = concat('t', gate.name) and job.place = 0 and job.position is not null
                order by job.position
                limit 1
            )
            else coalesce(
                (
                    select job.id
                    from dibs_jobs job force index (dibs_jobs_gate)
                    where job.gate = concat('s', gate.name) and job.place in (40, 41)
                    order by job.token desc
                    limit 1
                ),
                (
                    select job.id
                    from dibs_jobs job force index (dibs_jobs_gate)
                    where job.gate = concat('s', gate.name)
                      and job.place in (20, 21, 30, 31)
                      and job.position is not null
                    order by job.position, job.precedence, job.run_at, job.id
                    limit 1
                )
            )
        end
    ) as head,
    (gate.held_by is not null) + (
        select count(*)
        from dibs_jobs job force index (dibs_jobs_gate)
        where job.gate = concat(left(gate.sort, 1), gate.name) and job.position is not null
    ) as length,
    gate.held_by is not null as held,
    (
        select count(*)
        from dibs_jobs job force index (dibs_jobs_gate)
        where job.gate = concat('s', gate.name) and gate.sort = 'slot' and job.place in (40, 41)
    ) as running
from dibs_gates gate
where gate.sort = :sort
  and (:names is null or json_contains(:names, json_quote(gate.name)))
  and (:after is null or gate.name > :after)
  and (gate.held_by is not null or not :held)
order by gate.name
limit :limit

-- name: current
-- The job that started last: of the running ones and the ones that wait again, which are few, and of the finished.
select job.slot, job.id, job.token
from json_table(
    :gates, '$[*]' columns (gate varchar(701) character set utf8mb4 collate {names} path '$')
) given
straight_join dibs_jobs job force index (dibs_jobs_gate)
    on job.gate = given.gate and job.place in (11, 21, 31, 41)
union all
(
    select job.slot, job.id, job.token
    from (
        select
            given.slot,
            (
                select max(ended.token)
                from dibs_finished ended force index (dibs_finished_slot_token)
                where ended.slot = given.slot
            ) as token
        from json_table(
            :slots, '$[*]' columns (slot varchar(700) character set utf8mb4 collate {names} path '$')
        ) given
    ) latest
    straight_join dibs_finished job force index (dibs_finished_slot_token)
        on job.slot = latest.slot and job.token = latest.token
)

-- name: upcoming
select
    {>overdue} as overdue,
    exists (select 1 from dibs_jobs ready where ready.state = 'ready') as ready,
    (
        select min(due.at)
        from (
            select min(job.due_at) as at from dibs_jobs job
            union all
            select min(gate.offer_ends) from dibs_gates gate
        ) due
    ) as next_due,
    (select min(held.lease_until) from dibs_jobs held) as next_lease,
    {>schedule_changes} as schedules,
    {now} as now

-- fragment: overdue
(
        exists (select 1 from dibs_jobs due where due.due_at <= {now})
        or exists (select 1 from dibs_jobs dead where dead.lease_until <= {now})
        or exists (select 1 from dibs_gates offer where offer.offer_ends <= {now})
    )

-- name: enqueue_again
-- A job that has the id or the key already stays as it is, and is locked: it can't finish before we have read which
-- it is. One that has long had a key is seen before, by `key_holders`. (`insert ignore` would also hide errors that
-- are no duplicates.)
insert into dibs_jobs ({>new_columns}, train, slot, slot_policy, slot_limit, position, unique_until)
select
    {>new_values},
    given.train,
    given.slot,
    given.slot_policy,
    given.slot_limit,
    given.position,
    given.unique_until
from json_table(
    :jobs,
    '$[*]' columns (
        {>new_paths},
        train varchar(200) character set utf8mb4 path '$[16]',
        slot varchar(700) character set utf8mb4 path '$[17]',
        slot_policy varchar(20) character set utf8mb4 path '$[18]',
        slot_limit integer path '$[19]',
        position bigint path '$[20]',
        unique_until datetime(6) path '$[21]'
    )
) given
on duplicate key update stored_by = dibs_jobs.stored_by

-- name: holders
-- The jobs that have these unique keys now.
select job.id as holder, job.unique_key, job.stored_by, {>place_columns}
from {>each_keyed}
for update {of:job}
