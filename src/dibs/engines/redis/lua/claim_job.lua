-- uses: limits due at_gates places moves turns claim
-- Lease exactly this job, if it is ready and its queue lets it.

-- Whether a job behind its slot may go all the same: nobody has started.
local function may_overtake(job)
  if job.state ~= 'blocked' or not job.position or not job.slot then
    return false
  end
  return turns().fits(turns().limit_of(job), (turns().going_in(turns().gate_of(job))))
end

-- It gets the turn of those who have not started.
local function lease_blocked(job)
  leave(job)
  enter(job, 'ready')
  local flat = lease(rank(job), line_of(job), job.kind)
  job.state, job.token, job.worker = 'running', text(last_token + taken), given.worker
  turns().touch(turns().gate_of(job))
  return flat
end

local function answer_claim_job()
  local job = load(given.job)
  if not job or paused[job.queue] or not (job.state == 'ready' or may_overtake(job)) then
    return answer_claims({})
  end
  local room = room_in(job.queue, limits)
  if room and room <= 0 then
    return answer_claims({})
  end
  if job.state == 'blocked' then
    return answer_claims({lease_blocked(job)})
  end
  return answer_claims({lease(rank(job), line_of(job), job.kind)})
end
