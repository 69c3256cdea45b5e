-- What ends a job or puts it back, and who has its unique key.

local function owner_of(unique_key)
  if keys_taken[unique_key] ~= nil then
    return keys_taken[unique_key]
  end
  return redis.call('HGET', store .. ':unique', unique_key)
end

local function keeps_key(job)
  return not ENDED[job.state] or (job.unique_until and tonumber(job.unique_until) > now)
end

-- Who has a key: a live job, or a finished one that keeps it for a time.
local function holder_of(unique_key)
  local owner = owner_of(unique_key)
  local job = owner and load(owner)
  return job and keeps_key(job) and job
end

local function take_key(job)
  if job.unique_key then
    plan()
    keys_taken[job.unique_key] = job.id
  end
end

local function free_key(job)
  if job.unique_key and owner_of(job.unique_key) == job.id then
    plan()
    keys_taken[job.unique_key] = false
  end
end

-- In this state, unless its gate wants otherwise; from this time on, if it is another.
local function wait_again(job, state, run_at)
  leave(job)
  if run_at then
    change(job, 'run_at', run_at)
  end
  local waits = job.position and turns().waits_as(job, state) or state
  change(job, 'state', waits)
  enter(job, waits)
end

-- The same, without a holder.
local function back(job, state, run_at)
  wait_again(job, state, run_at)
  change(job, 'worker', '', 'lease_until', '')
end

local function finish(job, state, message)
  leave(job)
  change(job, 'state', state, 'finished_at', text(now), 'lease_until', '')
  if message then
    change(job, 'message', message)
  end
  if job.position then
    turns().end_at_gate(job, state)
  end
  if not keeps_key(job) then
    free_key(job)
  end
  enter(job, state)
  if is_step(job) then
    steps().ended(job)
  end
end

-- With a fresh budget, once it has left where it was. Who waits for its parents again keeps its time.
local function begin_anew(job, state, run_at)
  change(job, 'state', state, 'run_at', run_at, 'attempts', 0, 'progress', 0, 'message', '',
    'result', '', 'finished_at', '', 'cancel_reason', '', 'worker', '', 'lease_until', '')
  enter(job, state)
end
