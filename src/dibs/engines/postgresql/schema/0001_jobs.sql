-- Live and finished jobs apart: what can still run stays small, whatever was done before (ADR 3).
create table dibs_jobs (
    id            uuid primary key,
    kind          text collate "C" not null,
    queue         text collate "C" not null,
    args          text not null,
    priority      smallint not null,
    state         text not null,
    attempts      integer not null default 0,
    max_attempts  integer not null,
    run_at        timestamptz not null,
    enqueued_at   timestamptz not null,
    claimed_at    timestamptz,
    finished_at   timestamptz,
    worker        text,
    token         bigint,
    lease_until   timestamptz,
    train         text,
    slot          text,
    on_cancelled  text not null default 'advance',
    on_failed     text not null default 'advance',
    unique_key    text,
    pipeline_id   uuid,
    parent_id     uuid,
    progress      double precision not null default 0,
    message       text,
    result        text,
    errors        text not null default '[]',
    tags          text not null default '[]',
    meta          text not null default '{}',
    cancel_reason text,
    settled_token bigint,
    settled_as    text
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

-- The claim walks this one: per (queue, kind), in the order of claiming, ready jobs only.
create index dibs_jobs_ready on dibs_jobs (queue, kind, priority desc, run_at, id)
    where state = 'ready';
create index dibs_jobs_due on dibs_jobs (run_at) where state = 'scheduled';
create index dibs_jobs_leases on dibs_jobs (lease_until) where state = 'running';
create unique index dibs_jobs_unique_key on dibs_jobs (unique_key) where unique_key is not null;

create table dibs_finished (like dibs_jobs including defaults, primary key (id));

-- Only queues that somebody paused or limited have a row.
create table dibs_queues (
    name        text collate "C" primary key,
    paused      boolean not null default false,
    max_running integer
);

-- One counter for all claims: of two claims of one job, train or slot the later is greater.
create sequence dibs_token;
