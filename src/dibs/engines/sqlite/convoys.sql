-- SQLite's words for convoys (ADR 19): who may follow a head, who did, and when they ended.

-- name: followers
select
    {job_columns:job},
    job.run_at <= {now} as is_due,
    not exists (
        select 1
        from dibs_queues setting
        where setting.name = job.queue and (setting.paused or setting.max_running is not null)
    ) as is_open
from dibs_jobs head
cross join dibs_jobs job on job.train = head.train and job.position > head.position
where head.id = :job and head.token = :token and head.state = 'running' and head.lease_until > {now}
order by job.position
limit :limit

-- name: start_follower
-- Fenced by the token of its head: under its lease it was run, and nobody else could start it. Who was cancelled
-- or deleted since is not blocked any more. The clock here counts milliseconds: nobody began before the head did.
update dibs_jobs
set
    state = 'running',
    attempts = attempts + 1,
    worker = head.worker,
    token = :token,
    claimed_at = max(head.claimed_at, :claimed_at),
    lease_until = :lease_until
from (
    select held.worker, held.train, held.position, held.claimed_at
    from dibs_jobs held
    where held.id = :head and held.token = :head_token and held.state = 'running'
) head
where dibs_jobs.id = :id
  and dibs_jobs.state = 'blocked'
  and dibs_jobs.train = head.train
  and dibs_jobs.position > head.position

-- name: date_end
update dibs_finished set finished_at = max(claimed_at, :finished_at) where id = :id
