-- Live and finished jobs apart: what can still run stays small, whatever was done before (ADR 3).
-- Times are microseconds since 1970, of the host's clock, exact to the millisecond.
create table dibs_jobs (
    id            text not null primary key,
    kind          text not null,
    queue         text not null,
    args          text not null,
    priority      integer not null,
    state         text not null,
    attempts      integer not null default 0,
    max_attempts  integer not null,
    run_at        integer not null,
    enqueued_at   integer not null,
    claimed_at    integer,
    finished_at   integer,
    worker        text,
    token         integer,
    lease_until   integer,
    train         text,
    slot          text,
    on_cancelled  text not null default 'advance',
    on_failed     text not null default 'advance',
    unique_key    text,
    pipeline_id   text,
    parent_id     text,
    progress      real not null default 0,
    message       text,
    result        text,
    errors        text not null default '[]',
    tags          text not null default '[]',
    meta          text not null default '{}',
    cancel_reason text,
    settled_token integer,
    settled_as    text
);

-- The claim walks this one: per (queue, kind), in the order of claiming, ready jobs only.
create index dibs_jobs_ready on dibs_jobs (queue, kind, priority desc, run_at, id)
    where state = 'ready';
create index dibs_jobs_due on dibs_jobs (run_at) where state = 'scheduled';
create index dibs_jobs_leases on dibs_jobs (lease_until) where state = 'running';
create unique index dibs_jobs_unique_key on dibs_jobs (unique_key) where unique_key is not null;

create table dibs_finished (
    id            text not null primary key,
    kind          text not null,
    queue         text not null,
    args          text not null,
    priority      integer not null,
    state         text not null,
    attempts      integer not null,
    max_attempts  integer not null,
    run_at        integer not null,
    enqueued_at   integer not null,
    claimed_at    integer,
    finished_at   integer,
    worker        text,
    token         integer,
    lease_until   integer,
    train         text,
    slot          text,
    on_cancelled  text not null,
    on_failed     text not null,
    unique_key    text,
    pipeline_id   text,
    parent_id     text,
    progress      real not null,
    message       text,
    result        text,
    errors        text not null,
    tags          text not null,
    meta          text not null,
    cancel_reason text,
    settled_token integer,
    settled_as    text
);

-- Only queues that somebody paused or limited have a row.
create table dibs_queues (
    name        text not null primary key,
    paused      integer not null default 0,
    max_running integer
);

-- One counter for all claims: of two claims of one job, train or slot the later is greater.
create table dibs_token (value integer not null);
insert into dibs_token (value) values (0);
