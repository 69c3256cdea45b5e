-- MySQL's and MariaDB's words for convoys (ADR 19): who may follow a head, who did, and when they ended.

-- name: followers
-- Tokens may be drawn before rows are sorted; the plan hands them out in order.
select
    {job_columns:job},
    {now} as now,
    {next_token} as next_token,
    head.token as head_token,
    job.run_at <= {now} as is_due,
    not exists (
        select 1
        from dibs_queues setting
        where setting.name = job.queue and (setting.paused or setting.max_running is not null)
    ) as is_open
from dibs_jobs head
straight_join dibs_jobs job force index (dibs_jobs_gate)
    on job.gate = head.gate and job.place = 0 and job.position > head.position
where head.id = unhex(:job) and head.token = :token and head.train is not null and head.lease_until > {now}
order by job.position
limit :limit

-- name: start_followers
-- Fenced by the token of their head: under its lease they were run, and nobody else could start them. Who was
-- cancelled or deleted since is not blocked any more.
update json_table(
    :convoy,
    '$[*]' columns (
        id char(32) character set ascii path '$[0]',
        token bigint path '$[1]',
        head char(32) character set ascii path '$[2]',
        head_token bigint path '$[3]',
        claimed_at datetime(6) path '$[4]',
        lease_until datetime(6) path '$[5]'
    )
) given
straight_join dibs_jobs head force index (primary)
    on head.id = unhex(given.head) and head.token = given.head_token and head.lease_until is not null
straight_join dibs_jobs job force index (primary)
    on job.id = unhex(given.id)
    and job.state = 'blocked'
    and job.gate = head.gate
    and job.position > head.position
set
    job.state = 'running',
    job.attempts = job.attempts + 1,
    job.worker = head.worker,
    job.token = given.token,
    job.claimed_at = given.claimed_at,
    job.lease_until = given.lease_until

-- name: date_ends
update json_table(
    :convoy,
    '$[*]' columns (
        id char(32) character set ascii path '$[0]',
        finished_at datetime(6) path '$[1]'
    )
) given
straight_join dibs_finished job force index (primary) on job.id = unhex(given.id)
set job.finished_at = given.finished_at
