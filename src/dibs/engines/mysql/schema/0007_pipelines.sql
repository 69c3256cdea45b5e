-- Pipelines (ADR 18). A row per pipeline whose jobs wait for each other, locked by everybody who ends one of
-- them or puts it back.
create table if not exists dibs_pipelines (
    id        binary(16) not null primary key,
    name      varchar(200) not null,
    on_failed varchar(20) not null,
    changes   bigint not null default 0
) engine = innodb row_format = dynamic character set utf8mb4
  collate /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;

-- Who waits for whom, in the order given. What a parent's success means to the child is noted here, so that the
-- parent may be pruned before the child has run.
create table if not exists dibs_parents (
    child  binary(16) not null,
    place  integer not null,
    parent binary(16) not null,
    met    boolean not null default false,
    primary key (child, place),
    key dibs_parents_parent (parent)
) engine = innodb row_format = dynamic character set utf8mb4
  collate /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;

-- All jobs of a pipeline, live and finished.
alter table dibs_jobs add key /*M! if not exists */ dibs_jobs_pipeline (pipeline_id);
alter table dibs_finished add key /*M! if not exists */ dibs_finished_pipeline (pipeline_id);
