-- How many attempts ended in a minute or a quarter of an hour, by queue and kind, for charts: done, failed, and how
-- long they had waited (latency) and took (duration), counted in buckets of doubling size from below 1 ms to over an
-- hour. Workers add to it once a minute; a job costs nothing here.
create table dibs_minutes (
    width     smallint not null,
    at_minute integer not null,
    queue     text collate "C" not null,
    kind      text collate "C" not null,
    {>minute_counts},
    primary key (width, at_minute, queue, kind)
);
