-- Pipelines (ADR 18). A row per pipeline whose jobs wait for each other, locked by everybody who ends one of
-- them or puts it back.
create table dibs_pipelines (
    id        uuid primary key,
    name      text not null,
    on_failed text not null
);

-- Who waits for whom, in the order given. What a parent's success means to the child is noted here, so that the
-- parent may be pruned before the child has run.
create table dibs_parents (
    child  uuid not null,
    place  integer not null,
    parent uuid not null,
    met    boolean not null default false,
    primary key (child, place)
);
create index dibs_parents_parent on dibs_parents (parent);

-- All jobs of a pipeline, live and finished.
create index dibs_jobs_pipeline on dibs_jobs (pipeline_id) where pipeline_id is not null;
create index dibs_finished_pipeline on dibs_finished (pipeline_id) where pipeline_id is not null;
