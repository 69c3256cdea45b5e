-- Who works here: for people and for `why`. Nothing depends on these rows being there.
create table if not exists dibs_workers (
    name        varchar(200) not null primary key,
    queues      longtext,
    kinds       longtext not null,
    concurrency integer not null,
    running     integer not null,
    started_at  datetime(6) not null,
    seen_at     datetime(6) not null
) engine = innodb row_format = dynamic character set utf8mb4
  collate /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;
