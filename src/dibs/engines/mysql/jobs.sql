-- Blocks of MySQL and MariaDB; engine.py has the answers. Our own connections are READ COMMITTED. An answer that
-- changes something begins with a locking read, by primary key or down one index in claiming order; all later
-- writes go to the locked rows, by primary key.
--
-- Many rows are sent as one JSON text. `straight_join … force index` fixes the order: the given ids first, then
-- one read of the primary key for each. Left to itself the server reads a small table whole, and a locking
-- statement then waits for rows that it does not need. MariaDB alone reads `/*M! … */`, MySQL alone
-- `/*!80017 … */`.

-- fragment: given_ids
json_table(:ids, '$[*]' columns (id char(32) character set ascii path '$')) given

-- name: get_newest
-- For a caller's transaction that may have begun long ago: a locking read sees the newest rows.
(
    select {job_columns:job}
    from {>given_ids}
    straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
    {share:job}
)
union all
(
    select {job_columns:job}
    from {>given_ids}
    straight_join dibs_finished job force index (primary) on job.id = unhex(given.id)
    {share:job}
)

-- name: counts
select job.state, count(*) as jobs from dibs_jobs job group by job.state
union all
select job.state, count(*) as jobs from dibs_finished job group by job.state

-- name: enqueue
-- For ids that are surely new. If a key is violated, the whole batch is tried again with `enqueue_again`.
insert into dibs_jobs ({>new_columns})
{>new_rows}

-- fragment: new_columns
id, kind, queue, args, priority, state, max_attempts, run_at, enqueued_at, unique_key,
    on_cancelled, on_failed, pipeline_id, parent_id, tags, meta, stored_by

-- fragment: new_rows
select {>new_values}
from json_table(:jobs, '$[*]' columns ({>new_paths})) given

-- fragment: new_values
unhex(given.id),
    given.kind,
    given.queue,
    given.args,
    given.priority,
    given.state,
    given.max_attempts,
    given.run_at,
    given.enqueued_at,
    given.unique_key,
    given.on_cancelled,
    given.on_failed,
    unhex(given.pipeline_id),
    unhex(given.parent_id),
    given.tags,
    given.meta,
    unhex(:stored_by)

-- fragment: new_paths
id char(32) character set ascii path '$[0]',
        kind varchar(200) character set utf8mb4 path '$[1]',
        queue varchar(200) character set utf8mb4 path '$[2]',
        args longtext character set utf8mb4 path '$[3]',
        priority smallint path '$[4]',
        state varchar(20) character set ascii path '$[5]',
        max_attempts integer path '$[6]',
        run_at datetime(6) path '$[7]',
        enqueued_at datetime(6) path '$[8]',
        unique_key varchar(200) character set utf8mb4 path '$[9]',
        on_cancelled varchar(20) character set utf8mb4 path '$[10]',
        on_failed varchar(20) character set utf8mb4 path '$[11]',
        pipeline_id char(32) character set ascii path '$[12]',
        parent_id char(32) character set ascii path '$[13]',
        tags longtext character set utf8mb4 path '$[14]',
        meta longtext character set utf8mb4 path '$[15]'

-- name: stored
-- The jobs with these ids; `stored_by` marks the rows of this call.
select job.id, job.stored_by
from {>given_ids}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
for update {of:job}

-- name: ended
select job.id
from {>given_ids}
straight_join dibs_finished job force index (primary) on job.id = unhex(given.id)

-- name: finished
select job.id
from {>given_ids}
straight_join dibs_finished job force index (primary) on job.id = unhex(given.id)
for update {of:job}

-- name: opening
-- What a claim must know before it reads jobs: which queues are paused or limited, and whether upkeep is due.
select :look and {>overdue} as overdue, setting.name, setting.paused, setting.max_running
from (select 1 as one) once
left join dibs_queues setting on setting.paused or setting.max_running is not null

-- name: line
-- The first jobs of one queue-kind pair, in claiming order, and the head of the next pair. Jobs of a paused queue
-- or of another kind cost one jump in the claim index, not one read per job. (These databases can't jump within
-- one statement: compared with a column of a recursive part, they read on row by row.)
(
    {>near}
)
union all
(
    select next.*, 1 as is_next
    from (
        (
            select ready.queue, ready.kind, ready.precedence, ready.run_at as due, ready.id as near
            from dibs_jobs ready force index (dibs_jobs_ready)
            where ready.state = 'ready' and ready.queue = :queue and ready.kind > :kind
            order by ready.kind, ready.precedence, ready.run_at, ready.id
            limit 1
        )
        union all
        (
            select ready.queue, ready.kind, ready.precedence, ready.run_at as due, ready.id as near
            from dibs_jobs ready force index (dibs_jobs_ready)
            where ready.state = 'ready' and ready.queue > :queue
            order by ready.queue, ready.kind, ready.precedence, ready.run_at, ready.id
            limit 1
        )
    ) next
    order by next.queue, next.kind
    limit 1
)

-- name: near
{>near}

-- fragment: near
select ready.queue, ready.kind, ready.precedence, ready.run_at as due, ready.id as near, 0 as is_next
from dibs_jobs ready force index (dibs_jobs_ready)
where ready.state = 'ready' and ready.queue = :queue and ready.kind = :kind
order by ready.precedence, ready.run_at, ready.id
limit :limit

-- name: lock_first
-- Rows are locked one by one in index order, and rows that another claim has locked are skipped. The index is
-- named, with exactly its order: a sort would first lock all jobs of the pair.
select {>locked}
from dibs_jobs job force index (dibs_jobs_ready)
where job.state = 'ready' and job.queue = :queue and job.kind = :kind
order by job.precedence, job.run_at, job.id
limit :limit
for update skip locked

-- name: lock_first_on
-- The same, behind the last job that was claimed there: what was claimed before, and may not be cleared away
-- while somebody holds an old snapshot, is not stepped over.
select {>locked}
from dibs_jobs job force index (dibs_jobs_ready)
where job.state = 'ready' and job.queue = :queue and job.kind = :kind and job.precedence = :precedence
  and (job.run_at > :run_at or job.run_at = :run_at and job.id > unhex(:id))
order by job.precedence, job.run_at, job.id
limit :limit
for update skip locked

-- name: near_on
select ready.queue, ready.kind, ready.precedence, ready.run_at as due, ready.id as near, 0 as is_next
from dibs_jobs ready force index (dibs_jobs_ready)
where ready.state = 'ready' and ready.queue = :queue and ready.kind = :kind and ready.precedence = :precedence
  and (ready.run_at > :run_at or ready.run_at = :run_at and ready.id > unhex(:id))
order by ready.precedence, ready.run_at, ready.id
limit :limit

-- name: lock_these
select {>locked}
from {>given_ids}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id) and job.state = 'ready'
for update {of:job} skip locked

-- name: looks_ready
select 1 as is_ready
from dibs_jobs job
where job.id = unhex(:job) and job.state = 'ready'

-- name: rest
select sleep(:seconds) as rested

-- fragment: locked
{job_columns:job}, {now} as now, {next_token} as next_token

-- name: lease
update json_table(
    :taken,
    '$[*]' columns (
        id char(32) character set ascii path '$[0]',
        token bigint path '$[1]',
        lease_until datetime(6) path '$[2]'
    )
) given
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
set
    job.state = 'running',
    job.attempts = job.attempts + 1,
    job.worker = :worker,
    job.token = given.token,
    job.claimed_at = :now,
    job.lease_until = given.lease_until

-- name: lock_limits
-- A statement of its own, before the running jobs are counted: the count must see what earlier holders of the
-- lock have claimed.
select setting.name
from dibs_queues setting
where setting.max_running is not null
order by setting.name
for update

-- name: running
select setting.name, count(job.id) as running
from dibs_queues setting
left join dibs_jobs job force index (dibs_jobs_ready) on job.state = 'running' and job.queue = setting.name
where setting.max_running is not null
group by setting.name

-- name: held_and_free
-- Rows that another transaction has locked are left for the next heartbeat, or a later settlement.
select job.id, job.token, job.cancel_reason, {>place_columns}, {now} as now
from {>given_claims}
straight_join dibs_jobs job force index (primary) on {>is_held}
for update {of:job} skip locked

-- name: standing
select job.id, job.token, job.lease_until, job.cancel_reason
from {>given_claims}
straight_join dibs_jobs job force index (primary) on {>is_held}

-- fragment: given_claims
json_table(
    :claims,
    '$[*]' columns (id char(32) character set ascii path '$[0]', token bigint path '$[1]')
) given

-- fragment: is_held
-- A running job is one with a lease.
job.id = unhex(given.id)
    and job.token = given.token
    and job.lease_until is not null

-- name: end_settled
-- The jobs that are locked by now go to the finished table.
{>insert_settled:job}
    job.attempts - given.refund,
    given.state,
    coalesce(job.pipeline_id, unhex(given.pipeline_id)),
    coalesce(
        given.message,
        case when given.state = 'cancelled' then nullif(job.cancel_reason, '') else job.message end
    ),
    given.result,
    given.errors,
    given.token,
    given.settled_as,
    {now}
from {>given_settlements}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
for update {of:job}

-- name: return_settled
update {>given_settlements}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
set
    job.state = given.state,
    job.run_at = coalesce({now} + interval given.delay microsecond, job.run_at),
    job.attempts = job.attempts - given.refund,
    job.errors = given.errors,
    job.pipeline_id = coalesce(job.pipeline_id, unhex(given.pipeline_id)),
    job.worker = null,
    job.lease_until = null,
    job.settled_token = given.token,
    job.settled_as = given.settled_as

-- fragment: given_settlements
json_table(
    :settlements,
    '$[*]' columns (
        id char(32) character set ascii path '$[0]',
        token bigint path '$[1]',
        state varchar(20) character set ascii path '$[2]',
        settled_as varchar(50) character set utf8mb4 path '$[3]',
        delay bigint path '$[4]',
        refund integer path '$[5]',
        result longtext character set utf8mb4 path '$[6]',
        errors longtext character set utf8mb4 path '$[7]',
        message longtext character set utf8mb4 path '$[8]',
        pipeline_id char(32) character set ascii path '$[9]'
    )
) given

-- name: forget
delete job
from {>given_ids}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)

-- name: forget_finished
delete job
from {>given_ids}
straight_join dibs_finished job force index (primary) on job.id = unhex(given.id)

-- name: renew
update {>given_ids}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
set job.lease_until = :lease_until

-- name: progress
update dibs_jobs
set progress = :fraction, message = coalesce(:message, message)
where id = unhex(:job)

-- name: stage
update {>given_ids}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
set job.state = 'ready'

-- name: end
-- Out of the live table without a settlement: swept or cancelled.
{>insert_finished:job}
    job.attempts,
    given.state,
    job.pipeline_id,
    coalesce(nullif(given.message, ''), case when given.state = 'failed' then job.message end),
    coalesce(given.errors, job.errors),
    job.settled_token,
    job.settled_as,
    {now}
from {>given_ends}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
for update {of:job}

-- fragment: given_ends
json_table(
    :ends,
    '$[*]' columns (
        id char(32) character set ascii path '$[0]',
        state varchar(20) character set ascii path '$[1]',
        message longtext character set utf8mb4 path '$[2]',
        errors longtext character set utf8mb4 path '$[3]'
    )
) given

-- name: ask_to_cancel
update {>given_ids}
straight_join dibs_jobs job force index (primary) on job.id = unhex(given.id)
set job.cancel_reason = :reason

-- name: failed_or_cancelled
select job.id, job.unique_key
from {>given_ids}
straight_join dibs_finished job force index (primary) on job.id = unhex(given.id)
where job.state in ('failed', 'cancelled')
for update {of:job}

-- name: set_queue
insert into dibs_queues (name, paused, max_running)
values (:queue, coalesce(:paused, false), :max_running)
on duplicate key update
    paused = coalesce(:paused, dibs_queues.paused),
    max_running = case when :set_limit then :max_running else dibs_queues.max_running end

-- name: tick
insert into dibs_workers (name, version, queues, kinds, concurrency, running, started_at, seen_at)
values (:worker, :version, :queues, :kinds, :concurrency, :running, {now}, {now})
on duplicate key update version = :version, queues = :queues, kinds = :kinds, running = :running, seen_at = {now}

-- name: add_to_minute
insert into dibs_minutes (width, at_minute, queue, kind, {minute_columns})
values (:width, :at_minute, :queue, :kind, {minute_values})
on duplicate key update {minute_adds:dibs_minutes}

-- name: refuse
insert into dibs_refusals (job, token, tried, worker, refused_at)
select job.id, :token, :tried, :worker, {now}
from ({>this_job}) job
on duplicate key update token = dibs_refusals.token

-- name: forget_workers
-- A worker that was stopped in the middle of its report keeps its row locked: it is skipped.
delete worker
from (
    select known.name
    from dibs_workers known
    where known.seen_at < {now_minus:forget_after}
    for update skip locked
) gone
straight_join dibs_workers worker force index (primary) on worker.name = gone.name

-- name: database
select database() as name

-- name: leave
delete from dibs_workers where name = :worker

-- name: asked_to_stop
select asked.id, asked.token, asked.worker
from dibs_jobs asked force index (dibs_jobs_leases)
where asked.lease_until is not null and asked.cancel_reason is not null

-- name: make_schedule
-- If two processes do this at once, the second violates the key, starts over and finds the row.
insert into dibs_schedules (name, last_tick, revision, about)
values (:schedule, :tick, :new_revision, :about)

-- name: schedule_named
select name from dibs_schedules where name = :schedule for update

-- name: schedule_at
-- Only while it is as it was read.
select name
from dibs_schedules
where name = :schedule and last_tick = :since and revision = :revision
for update

-- name: move_schedule
update dibs_schedules set last_tick = :tick where name = :schedule

-- name: change_schedule
update dibs_schedules
set last_tick = :tick, revision = :new_revision, about = :about
where name = :schedule

-- name: delete_schedule
delete from dibs_schedules where name = :schedule

-- name: examine
-- What the server says about itself, for `dibs doctor`.
select 'version' as fact, server.name as about, version() as value
from {>server}
union all
select 'needs', server.name, json_unquote(json_extract(:oldest, concat('$.', server.name)))
from {>server}
union all
select 'needs', 'schema', cast(:schema as char)
union all
select 'setting', lower(given.variable_name), lower(given.variable_value)
from {variables:global_variables} given
where lower(given.variable_name) in ('innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'read_only')
   or (lower(given.variable_name) = 'sync_binlog' and @@log_bin)
union all
-- Ours is set whatever the server's is, which is for the caller's own transactions.
select 'isolation', 'own connections', lower(replace(given.variable_value, '-', ' '))
from {variables:session_variables} given
where lower(given.variable_name) = {isolation}
union all
select 'isolation', 'by default', lower(replace(given.variable_value, '-', ' '))
from {variables:global_variables} given
where lower(given.variable_name) = {isolation}
union all
select 'connections', 'used', cast(given.variable_value as char)
from {variables:global_status} given
where lower(given.variable_name) = 'threads_connected'
union all
select 'connections', 'most', cast(@@max_connections as char)
union all
select 'bytes', kept.table_name, cast(kept.data_length + kept.index_length as char)
from information_schema.tables kept
where kept.table_schema = database() and kept.table_name in ('dibs_jobs', 'dibs_finished')
union all
select 'live rows', kept.table_name, cast(kept.table_rows as char)
from information_schema.tables kept
where kept.table_schema = database() and kept.table_name in ('dibs_jobs', 'dibs_finished')
union all
select 'hints', 'new jobs', 'looked for'

-- fragment: server
(select case when locate('MariaDB', version()) > 0 then 'MariaDB' else 'MySQL' end as name) server

-- name: may_see_others
select 1 as seen
from information_schema.user_privileges own
where own.privilege_type = 'PROCESS'
limit 1

-- name: open_transactions
-- Old snapshots keep dead rows from being removed.
select
    'thread' as fact,
    concat('thread ', began.trx_mysql_thread_id) as about,
    cast(timestampdiff(second, began.trx_started, now()) as char) as value
from information_schema.innodb_trx began
where began.trx_mysql_thread_id not in (0, connection_id())
order by began.trx_started
limit 3

-- name: oldest_transaction
select
    other.id as connection,
    other.user as user,
    other.host as program,
    timestampdiff(second, open.trx_started, now()) as seconds
from information_schema.innodb_trx open
join information_schema.processlist other on other.id = open.trx_mysql_thread_id
where other.id <> connection_id()
order by open.trx_started
limit 1

-- name: note_moves
-- A job that was enqueued again while it was away departs a second time.
insert into dibs_moving (id, way, store, job)
select unhex(given.id), given.way, unhex(given.store), given.job
from json_table(
    :rows,
    '$[*]' columns (
        id char(32) character set ascii path '$[0]',
        way varchar(3) character set ascii path '$[1]',
        store char(32) character set ascii path '$[2]',
        job longtext character set utf8mb4 path '$[3]'
    )
) given
on duplicate key update job = given.job

-- name: departed_these
select moving.id, moving.job
from {>given_ids}
straight_join dibs_moving moving force index (primary)
    on moving.id = unhex(given.id) and moving.way = 'out' and moving.store = unhex(:store)

-- name: noted
select moving.id
from {>given_ids}
straight_join dibs_moving moving force index (primary)
    on moving.id = unhex(given.id) and moving.way = 'in' and moving.store = unhex(:store)

-- name: landed
delete moving
from {>given_ids}
straight_join dibs_moving moving force index (primary)
    on moving.id = unhex(given.id) and moving.way = :way and moving.store = unhex(:store)

-- name: store_live
insert into dibs_jobs ({stored_columns})
{>stored_rows}

-- name: store_finished
insert into dibs_finished ({stored_columns})
{>stored_rows}

-- fragment: stored_rows
select {stored_given}
from json_table(:rows, '$[*]' columns ({stored_places})) given

-- name: outrun
-- MariaDB sets a sequence forward only; MySQL's tokens come from its clock.
select /*M! setval(dibs_token, :token) + */ 0 as token
