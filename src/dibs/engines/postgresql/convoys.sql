-- PostgreSQL's words for convoys (ADR 19): who may follow a head, who did, and when they ended.

-- name: followers
-- The next of a train, each with a token of its own: nothing is written, and nobody is locked.
select
    {job_columns:next},
    nextval('dibs_token') as new_token,
    next.run_at <= {now} as is_due,
    not exists (
        select 1
        from dibs_queues setting
        where setting.name = next.queue and (setting.paused or setting.max_running is not null)
    ) as is_open
from (
    select behind.*
    from dibs_jobs head
    cross join lateral (
        select {job_columns:job}, job.position
        from dibs_jobs job
        where job.train = head.train and job.position > head.position
        order by job.position
        limit :limit
    ) behind
    where head.id = {id:job} and head.token = cast(:token as bigint) and head.lease_until > {now}
    order by behind.position
) next

-- name: start_followers
-- Fenced by the token of their head: under its lease they were run, and nobody else could start them. Who was
-- cancelled or deleted since is not blocked any more.
with given as materialized (
    select given.*
    from json_to_recordset(cast(:convoy as json)) as given (
        id uuid,
        token bigint,
        head uuid,
        head_token bigint,
        lease bigint,
        began bigint
    )
),
head as materialized (
    select job.id, job.token, job.train, job.position, job.worker
    from dibs_jobs job
    where job.id = any (array(select given.head from given))
      and ((job.id, job.token) in (select given.head, given.head_token from given)) is true
      and job.lease_until is not null
)
update dibs_jobs job
set
    state = 'running',
    attempts = job.attempts + 1,
    worker = head.worker,
    token = given.token,
    claimed_at = {now} - given.began * interval '1 microsecond',
    lease_until = {now} + given.lease * interval '1 microsecond'
from given
join head on head.id = given.head
where job.id = given.id
  and job.state = 'blocked'
  and job.train = head.train
  and job.position > head.position
returning job.id, {now} as moment

-- name: date_ends
update dibs_finished job
set finished_at = coalesce(cast(:moment as timestamptz), {now}) - given.ended * interval '1 microsecond'
from json_to_recordset(cast(:convoy as json)) as given (id uuid, ended bigint)
where job.id = given.id
