-- How many attempts ended in a minute or a quarter of an hour, by queue and kind, for charts: done, failed, and how
-- long they had waited (latency) and took (duration), counted in buckets of doubling size from below 1 ms to over an
-- hour. Workers add to it once a minute; a job costs nothing here.
create table if not exists dibs_minutes (
    width     smallint not null,
    at_minute integer not null,
    queue     varchar(200) not null,
    kind      varchar(200) not null,
    {>minute_counts},
    primary key (width, at_minute, queue, kind)
) engine = innodb row_format = dynamic character set utf8mb4
  collate /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;
