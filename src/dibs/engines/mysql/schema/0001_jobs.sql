-- Live and finished jobs apart: what can still run stays small, whatever was done before (ADR 3).
--
-- Names compare byte by byte, trailing spaces included; MariaDB and MySQL have different names for that
-- collation, and each reads only the comment that is meant for it. Making a table ends a transaction
-- here, so a migration that was interrupted is run again from its start: `if not exists` throughout.
-- Times are UTC, by the server's clock.
create table if not exists dibs_jobs (
    id            binary(16) not null,
    kind          varchar(200) not null,
    queue         varchar(200) not null,
    args          longtext not null,
    priority      smallint not null,
    state         enum('scheduled', 'blocked', 'ready', 'running', 'succeeded', 'failed', 'cancelled') not null,
    attempts      integer not null default 0,
    max_attempts  integer not null,
    run_at        datetime(6) not null,
    enqueued_at   datetime(6) not null,
    claimed_at    datetime(6),
    finished_at   datetime(6),
    worker        varchar(200),
    token         bigint,
    lease_until   datetime(6),
    train         varchar(200),
    slot          varchar(700),
    on_cancelled  varchar(20) not null default 'advance',
    on_failed     varchar(20) not null default 'advance',
    unique_key    varchar(200),
    pipeline_id   binary(16),
    parent_id     binary(16),
    progress      double not null default 0,
    message       longtext,
    result        longtext,
    errors        longtext not null default ('[]'),
    tags          longtext not null default ('[]'),
    meta          longtext not null default ('{}'),
    cancel_reason longtext,
    settled_token bigint,
    settled_as    varchar(50),
    -- Which call stored the row: how an enqueue that may be a repetition knows its own work.
    stored_by     binary(16),
    -- Descending indexes came late, so what goes first is made the smallest.
    precedence    smallint generated always as (-priority) stored,
    -- Not null only while the job is scheduled: claiming and settling never touch this index.
    due_at        datetime(6) generated always as (if(state = 'scheduled', run_at, null)) stored,
    primary key (id),
    unique key dibs_jobs_unique_key (unique_key),
    -- The claim walks this one: per (queue, kind), in the order of claiming, ready jobs only.
    key dibs_jobs_ready (state, queue, kind, precedence, run_at, id),
    key dibs_jobs_due (due_at),
    key dibs_jobs_leases (lease_until)
) engine = innodb row_format = dynamic character set utf8mb4
  collate /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;

create table if not exists dibs_finished (
    id            binary(16) not null,
    kind          varchar(200) not null,
    queue         varchar(200) not null,
    args          longtext not null,
    priority      smallint not null,
    state         enum('scheduled', 'blocked', 'ready', 'running', 'succeeded', 'failed', 'cancelled') not null,
    attempts      integer not null default 0,
    max_attempts  integer not null,
    run_at        datetime(6) not null,
    enqueued_at   datetime(6) not null,
    claimed_at    datetime(6),
    finished_at   datetime(6),
    worker        varchar(200),
    token         bigint,
    lease_until   datetime(6),
    train         varchar(200),
    slot          varchar(700),
    on_cancelled  varchar(20) not null default 'advance',
    on_failed     varchar(20) not null default 'advance',
    unique_key    varchar(200),
    pipeline_id   binary(16),
    parent_id     binary(16),
    progress      double not null default 0,
    message       longtext,
    result        longtext,
    errors        longtext not null default ('[]'),
    tags          longtext not null default ('[]'),
    meta          longtext not null default ('{}'),
    cancel_reason longtext,
    settled_token bigint,
    settled_as    varchar(50),
    primary key (id)
) engine = innodb row_format = dynamic character set utf8mb4
  collate /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;

-- Only queues that somebody paused or limited have a row.
create table if not exists dibs_queues (
    name        varchar(200) not null primary key,
    paused      boolean not null default false,
    max_running integer
) engine = innodb row_format = dynamic character set utf8mb4
  collate /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;

-- One counter for all claims: of two claims of one job, train or slot the later is greater. MySQL has no
-- sequences: there a token is the server's time in microseconds, or one more than the job's last token.
-- In a Galera cluster the nodes share it: without a cache, or a node would hand out old numbers; each node takes
-- every n-th number (`increment by 0`).
/*M! set @change = (
    select if(
        count(*) > 0,
        'create sequence if not exists dibs_token nocache increment by 0',
        'create sequence if not exists dibs_token'
    )
    from information_schema.global_variables known
    where known.variable_name = 'wsrep_on' and known.variable_value = 'ON'
) */ /*!80017 do 0 */;
/*M! prepare make_token from @change */ /*!80017 do 0 */;
/*M! execute make_token */ /*!80017 do 0 */;
/*M! deallocate prepare make_token */ /*!80017 do 0 */;
