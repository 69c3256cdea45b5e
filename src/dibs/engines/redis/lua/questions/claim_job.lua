-- uses: limits upkeep states gates claim
-- Claim exactly this job, if it is ready and its queue is neither paused nor full.

-- Whether a blocked job of a slot may go all the same: the jobs that were let through have not started.
local function may_overtake(job)
  if job.state ~= 'blocked' or not job.position or not job.slot then
    return false
  end
  return gates().fits(gates().limit_of(job), (gates().going_in(gates().gate_of(job))))
end

-- Opening the gate then blocks the jobs that have not started.
local function claim_blocked(job)
  leave(job)
  enter(job, 'ready')
  local flat = claim_one(rank(job), pair_of(job), job.kind)
  job.state, job.token, job.worker = 'running', text(last_token + taken), given.worker
  gates().touch(gates().gate_of(job))
  return flat
end

local function answer_claim_job()
  local job = load(given.job)
  local room = job and limits.room_in(job.queue) or 1
  if not job or paused[job.queue] or room <= 0 or not (job.state == 'ready' or may_overtake(job)) then
    return claims_of({})
  end
  return claims_of({job.state == 'blocked' and claim_blocked(job) or claim_one(rank(job), pair_of(job), job.kind)})
end
