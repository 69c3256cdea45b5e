-- How many attempts ended in a minute or a quarter of an hour, by queue and kind, for charts: done, failed, and how
-- long they had waited (latency) and took (duration), counted in buckets of doubling size from below 1 ms to over an
-- hour. Workers add to it once a minute; a job costs nothing here.
create table if not exists dibs_minutes (
    width     smallint not null,
    at_minute integer not null,
    queue     varchar(200) not null,
    kind      varchar(200) not null,
    done      integer not null default 0,
    failed    integer not null default 0,
    latency_a integer not null default 0, latency_b integer not null default 0,
    latency_c integer not null default 0, latency_d integer not null default 0,
    latency_e integer not null default 0, latency_f integer not null default 0,
    latency_g integer not null default 0, latency_h integer not null default 0,
    latency_i integer not null default 0, latency_j integer not null default 0,
    latency_k integer not null default 0, latency_l integer not null default 0,
    latency_m integer not null default 0, latency_n integer not null default 0,
    latency_o integer not null default 0, latency_p integer not null default 0,
    latency_q integer not null default 0, latency_r integer not null default 0,
    latency_s integer not null default 0, latency_t integer not null default 0,
    latency_u integer not null default 0, latency_v integer not null default 0,
    latency_w integer not null default 0, latency_x integer not null default 0,
    duration_a integer not null default 0, duration_b integer not null default 0,
    duration_c integer not null default 0, duration_d integer not null default 0,
    duration_e integer not null default 0, duration_f integer not null default 0,
    duration_g integer not null default 0, duration_h integer not null default 0,
    duration_i integer not null default 0, duration_j integer not null default 0,
    duration_k integer not null default 0, duration_l integer not null default 0,
    duration_m integer not null default 0, duration_n integer not null default 0,
    duration_o integer not null default 0, duration_p integer not null default 0,
    duration_q integer not null default 0, duration_r integer not null default 0,
    duration_s integer not null default 0, duration_t integer not null default 0,
    duration_u integer not null default 0, duration_v integer not null default 0,
    duration_w integer not null default 0, duration_x integer not null default 0,
    primary key (width, at_minute, queue, kind)
) engine = innodb row_format = dynamic character set utf8mb4
  collate /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;
