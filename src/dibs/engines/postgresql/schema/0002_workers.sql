-- Who works here: for people and for `why`. Nothing depends on these rows being there.
create table dibs_workers (
    name        text primary key,
    queues      text,
    kinds       text not null,
    concurrency integer not null,
    running     integer not null,
    started_at  timestamptz not null,
    seen_at     timestamptz not null
);
