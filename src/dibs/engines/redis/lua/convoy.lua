-- Convoys (ADR 19): jobs of a train that were run under the lease of their head. A module, read by settlements that
-- bring one.

-- A ride's columns, in the order in which they are given.
local JOB, TOKEN, HEAD, HEAD_TOKEN, LEASE, BEGAN, ENDED_AGO = 1, 2, 3, 4, 5, 6, 7

local function is_behind(job, head)
  return job.state == 'blocked' and job.position and job.train and job.train == head.train
    and tonumber(job.position) > tonumber(head.position)
end

local function start(job, head, ride)
  leave(job)
  change(
    job, 'state', 'running', 'attempts', (job.attempts or 0) + 1, 'worker', head.worker, 'token', ride[TOKEN],
    'claimed_at', text(now - ride[BEGAN]), 'lease_until', text(now + ride[LEASE])
  )
  enter(job, 'running')
  freed[job.queue] = (freed[job.queue] or 0) - 1 -- who counts what is stored does not see it yet
end

-- Fenced by the token of their head: under its lease they were run, and nobody else could start them. Who was
-- cancelled or deleted since is not blocked any more. They ended one after another, not all of them now.
local function start_followers()
  for _, ride in ipairs(given.convoy) do
    local head, job = held(ride[HEAD], ride[HEAD_TOKEN]), load(ride[JOB])
    if head and job and is_behind(job, head) then
      start(job, head, ride)
    end
    if some(ride[ENDED_AGO]) and held(ride[JOB], ride[TOKEN]) then
      job.ended_at = text(now - ride[ENDED_AGO])
    end
  end
end

return {start_followers = start_followers}
