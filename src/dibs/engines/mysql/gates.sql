-- MySQL's and MariaDB's words for trains and slots (ADR 12); gates.py says which blocks make an answer.
--
-- The rows of gates are locked first, in the order of their keys. Who is at a gate is then looked up in an
-- index without a lock, and locked by primary key: whoever locked an entry of that index and then waited for
-- the row would meet a claimer who has the row and wants to change the entry. A transaction of the caller's
-- may look at an old snapshot: where a gate has changed since, the look is a locking read, `…_newest`.

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
-- A row that is not there, or was deleted a moment ago, is made: -1 says that nobody has been here. Changes are
-- counted from another number each time.
insert into dibs_gates (sort, name, last_position, changes)
select given.sort, given.name, -1, cast(1000000 * unix_timestamp(now(6)) as signed)
from {>given_gates}
on duplicate key update changes = abs(dibs_gates.changes) + 1

-- name: gates_seen
-- In a transaction of the caller's, before they are locked.
select gate.sort, gate.name, gate.changes
from {>each_gate}

-- name: doubt_gates
-- What this transaction writes it also sees, whatever its snapshot is; it must remember not to trust it.
update {>each_gate}
set gate.changes = -abs(gate.changes)

-- name: locked_gates
select {>gate_columns}
from {>each_gate}
for update

-- name: gates_soon
-- For who would rather come again than wait for long. (MySQL waits for as long as for any lock.)
select {>gate_columns}
from {>each_gate}
for update /*M! wait 1 */

-- name: free_gates
-- Upkeep leaves gates alone where somebody is at work.
select {>gate_columns}
from {>each_gate}
for update skip locked

-- fragment: gate_columns
gate.sort, gate.name, gate.last_position, gate.held_by, gate.offer_ends, gate.changes, {now} as now

-- name: last_position
-- Of a gate that has just been made. Somebody is at it only if a person deleted its row.
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
from dibs_jobs head force index (dibs_jobs_gate)
where head.gate = given.gate and head.place = 0 and head.position is not null
order by head.position
limit 1

-- name: open_heads
-- The head goes when it is due.
update {>given_ids}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
set job.state = if(job.run_at <= {now}, 'ready', 'scheduled')
where job.state = 'blocked'

-- name: slot_running
select {>running_columns}
from dibs_jobs job force index (dibs_jobs_gate)
where job.gate = :gate and job.place in (40, 41)
order by job.token

-- name: slot_running_newest
select {>running_columns}
from dibs_jobs job force index (dibs_jobs_gate)
where job.gate = :gate and job.place in (40, 41)
order by job.token
lock in share mode

-- fragment: running_columns
job.id, job.slot_limit, job.position, job.cancel_reason is not null as asked, job.token

-- name: slot_line
-- Who waits and is due, the first of those who never started, the first of the others, and all who are ready.
(select {>line_columns} {>blocked_anew})
union all
(select {>line_columns} {>blocked_again})
union all
(select {>line_columns} {>ready_of_slot})

-- name: slot_line_newest
(select {>line_columns} {>blocked_anew} lock in share mode)
union all
(select {>line_columns} {>blocked_again} lock in share mode)
union all
(select {>line_columns} {>ready_of_slot} lock in share mode)

-- fragment: line_columns
job.id, job.state, job.queue, job.kind, job.slot_limit, job.position, job.priority, job.run_at

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

-- name: looked_ready
-- A ready job may be in the hands of a claimer: wait, then see what it is now.
select {>running_columns}, job.state
from {>given_ids}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
for update

-- name: somebody_there
select 1 as there
from dibs_jobs job force index (dibs_jobs_gate)
where job.gate = :gate and job.position is not null
limit 1

-- name: somebody_there_newest
select 1 as there
from dibs_jobs job force index (dibs_jobs_gate)
where job.gate = :gate and job.position is not null
limit 1
lock in share mode

-- name: clash
-- Who comes from another store can't have their places on this train if one of them is taken, if who runs here
-- would be behind them, or while the train waits for a person.
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
-- Who comes from another store may be before who is ready here.
update dibs_jobs
set state = 'blocked'
where gate = :gate and state in ('ready', 'scheduled')

-- name: move
update {>given_ids}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
set job.state = :state

-- name: place
update json_table(
    :places,
    '$[*]' columns (id char(32) character set ascii path '$[0]', position bigint path '$[1]')
) given
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
set job.position = given.position

-- name: slot_members
-- Those who were there before this one; who has the slot comes first.
{>members}

-- name: slot_members_newest
{>members}
lock in share mode

-- fragment: members
select job.id, job.state, job.slot_limit
from dibs_jobs job force index (dibs_jobs_gate)
where job.gate = :gate and job.position is not null and job.id <> unhex(:job)
order by job.state <> 'running', job.position, job.precedence, job.run_at, job.id

-- name: gates_of
-- At which gates these jobs are; without a lock, to be looked at again once the gates are locked.
select job.train, job.slot
from {>given_ids}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
where job.gate is not null

-- name: gates_of_ended
select job.train, job.slot
from {>given_ids}
straight_join dibs_finished job force index (primary) on job.id = unhex(given.id)
where job.train is not null or job.slot is not null

-- name: gates_of_keys
select job.train, job.slot
from {>given_keys}
straight_join dibs_jobs job force index (dibs_jobs_unique_key) on job.unique_key = given.name
where job.gate is not null

-- fragment: given_keys
json_table(
    :keys,
    '$[*]' columns (name varchar(200) character set utf8mb4 collate {names} path '$')
) given

-- name: key_holders
-- Who has these unique keys: nobody is locked, for a running job whose row is locked loses its lease.
select job.id as holder, job.unique_key
from {>given_keys}
straight_join dibs_jobs job force index (dibs_jobs_unique_key) on job.unique_key = given.name

-- name: running_holders
-- Those of them who run. For who comes to replace what waits: it will lock that alone, and two who had locked
-- it together before would be in each other's way.
select job.id as holder, job.unique_key
from {>given_keys}
straight_join dibs_jobs job force index (dibs_jobs_unique_key) on job.unique_key = given.name
where job.state = 'running'

-- name: key_holders_newest
-- Those of them who still do. Only what the index has is read: so its entries are locked and not the rows, and
-- who has a key can be claimed and renewed, but not settled. Who is just being settled is not waited for: two
-- who had waited for it together would both be in the way of the other's insert.
select job.id as holder, job.unique_key
from {>given_keys}
straight_join dibs_jobs job force index (dibs_jobs_unique_key) on job.unique_key = given.name
/*M! lock in share mode skip locked */ /*!80017 for share skip locked */

-- name: free_keys
-- Those of these keys that nobody's open transaction has met. Looked for before the rows are locked, which can't
-- be renewed then.
select job.unique_key
from {>given_keys}
straight_join dibs_jobs job force index (dibs_jobs_unique_key) on job.unique_key = given.name
for update skip locked

-- name: keys_held
select job.id, job.unique_key
from {>given_claims}
straight_join dibs_jobs job force index (primary) on {>is_held} and job.unique_key is not null

-- name: lock_keys
-- Whoever meets a key locks its entry and then the row. To end a job is to go the same way: who has the row and
-- wants to take the entry away would meet them.
select job.unique_key
from {>given_keys}
straight_join dibs_jobs job force index (dibs_jobs_unique_key) on job.unique_key = given.name
for update

-- name: keys_soon
select job.unique_key
from {>given_keys}
straight_join dibs_jobs job force index (dibs_jobs_unique_key) on job.unique_key = given.name
for update /*M! wait 1 */

-- name: lasting
-- Finished jobs that keep their unique keys for a time. Asked after the insert: whoever finished meanwhile
-- is seen.
select {>lasting_columns}
from {>lasting_keys}

-- name: lasting_newest
select {>lasting_columns}
from {>lasting_keys}
lock in share mode

-- fragment: lasting_columns
job.id as holder, job.unique_key

-- fragment: lasting_keys
{>given_keys}
straight_join dibs_finished job force index (dibs_finished_lasting)
    on job.key_is_free = false and job.unique_key = given.name and job.unique_until > {now}

-- name: replace
-- Arguments and time of a job that waits; where that leads to is for its gate to say, if it has one.
update dibs_jobs
set
    args = :args,
    run_at = :run_at,
    state = case
        when train is not null or (slot is not null and :run_at <= {now}) then 'blocked'
        when :run_at <= {now} then 'ready'
        else 'scheduled'
    end
where id = unhex(:holder) and state in ('scheduled', 'blocked', 'ready')

-- name: offers_over
select gate.sort, gate.name
from dibs_gates gate force index (dibs_gates_offers)
where gate.offer_ends <= {now}
order by gate.offer_ends
limit :limit

-- name: due
-- Those of slots are staged at their gates.
select job.id
from dibs_jobs job force index (dibs_jobs_due)
where job.due_at <= {now} and job.slot is null
order by job.due_at
limit :limit
for update skip locked

-- name: due_in_slots
-- Of those that are due first: a crowd of plain ones ahead is not walked.
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
for update skip locked

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
for update skip locked

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
from {>given_ids}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
for update

-- name: held
-- Fenced by the token: what is not held any more is not locked, and so not written.
select job.id, job.token, job.cancel_reason, {>place_columns}, {now} as now
from {>given_claims}
straight_join dibs_jobs job force index (primary) on {>is_held}
for update

-- name: sweep_returned
update {>given_ends}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
set
    job.state = if(job.slot is null, 'ready', 'blocked'),
    job.worker = null,
    job.lease_until = null,
    job.errors = given.errors

-- name: retry
-- One whose unique key is taken stays where it is.
insert into dibs_jobs (
    {kept_columns},
    attempts, state, pipeline_id, errors, settled_token, settled_as
)
select
    {retried_columns:job},
    0,
    if(job.train is null and job.slot is null, 'ready', 'blocked'),
    job.pipeline_id,
    job.errors,
    job.settled_token,
    job.settled_as
from {>given_ids}
straight_join dibs_finished job force index (primary) on job.id = unhex(given.id)
for update
on duplicate key update stored_by = dibs_jobs.stored_by

-- name: hurry
update {>given_ids}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
set job.state = if(job.slot is null, 'ready', 'blocked'), job.run_at = {now}

-- name: recover
update dibs_jobs
set
    state = if(slot is null, 'ready', 'blocked'),
    attempts = 0,
    worker = null,
    lease_until = null,
    cancel_reason = null,
    errors = :errors
where id = unhex(:job)

-- name: old
-- Not who holds a train, nor whose key still lasts.
select job.id
from dibs_finished job force index (primary)
where job.id < unhex(:before)
  and job.finished_at < {now_minus:older_than}
  and find_in_set(job.state, :states)
  and (job.unique_until is null or job.unique_until <= {now})
  and not exists (select 1 from dibs_gates gate where gate.held_by = job.id)
order by job.id
limit :limit
for update skip locked

-- name: held_by
-- Which trains wait for a person with these jobs.
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

-- name: slots_named
-- Names that jobs have, one after another: one step into the index for each, however many jobs there are. Whose
-- gate is not there, though somebody has a place, was deleted by hand.
select
    substring(named.gate, 2) as name,
    not exists (
        select 1 from dibs_gates gate where gate.sort = 'slot' and gate.name = substring(named.gate, 2)
    )
    and exists (
        select 1
        from dibs_jobs job force index (dibs_jobs_gate)
        where job.gate = named.gate and job.position is not null
    ) as is_lost
from (
    select job.gate
    from dibs_jobs job force index (dibs_jobs_gate)
    where job.gate > concat('s', :after) and job.gate < 't'
    group by job.gate
    order by job.gate
    limit :limit
) named
order by named.gate

-- name: trains_named
select
    substring(named.gate, 2) as name,
    not exists (
        select 1 from dibs_gates gate where gate.sort = 'train' and gate.name = substring(named.gate, 2)
    )
    and exists (
        select 1
        from dibs_jobs job force index (dibs_jobs_gate)
        where job.gate = named.gate and job.position is not null
    ) as is_lost
from (
    select job.gate
    from dibs_jobs job force index (dibs_jobs_gate)
    where job.gate > concat('t', :after) and job.gate < 'u'
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
    gate.held_by is not null as held
from dibs_gates gate
where gate.sort = :sort
  and (:names is null or json_contains(:names, json_quote(gate.name)))
  and (:after is null or gate.name > :after)
  and (gate.held_by is not null or not :held)
order by gate.name
limit :limit

-- name: current
-- Who started last: of those who run or wait again, which are few, and of the finished ones.
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
    {now} as now

-- fragment: overdue
(
        exists (select 1 from dibs_jobs due where due.due_at <= {now})
        or exists (select 1 from dibs_jobs dead where dead.lease_until <= {now})
        or exists (select 1 from dibs_gates offer where offer.offer_ends <= {now})
    )

-- name: enqueue_again
-- Whoever has the id or the key already stays as it is, and is locked: it can't finish before we have
-- read who it is. Those who have long had a key are seen before, by `key_holders`. (`insert ignore` would also swallow what is no duplicate.)
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
-- Who has these unique keys now.
select job.id as holder, job.unique_key, job.stored_by, {>place_columns}
from {>given_keys}
straight_join dibs_jobs job force index (dibs_jobs_unique_key) on job.unique_key = given.name
for update
