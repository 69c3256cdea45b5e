-- Writes of claims that no longer held their job, and were refused: for people, kept with the job, the newest twenty.
create table dibs_refusals (
    job        text not null,
    token      integer not null,
    tried      text not null,
    worker     text,
    refused_at integer not null,
    primary key (job, token, tried)
);
