-- uses: states gates pipelines
-- Remove jobs that ended in one of these states, longer ago than this.

local MOST_READ = 5000
local CHECK_AGAIN = 3600000000 -- microseconds

local horizon = now - given.older_than
local in_states = names(given.states)
local gone = {}

local function is_old(job)
  return in_states[job.state] and tonumber(job.finished_at) < horizon and job.id < given.before
end

-- The child that waits for it releases it when it ends. It is checked again all the same: that child may be deleted
-- by hand.
local function keep(job)
  put(store .. ':ended:' .. job.state, job.id, false)
  put(store .. ':kept', job.id, text(now + CHECK_AGAIN))
end

-- False if the job stays as it is.
local function prune_if_old(job)
  if #gone >= given.limit or not is_old(job) then
    return false
  end
  if in_pipeline(job) and pipelines().is_waited_for(job.id) then
    keep(job)
  else
    forget(job)
    gone[#gone + 1] = job.id
  end
  return true
end

-- Jobs that were kept for their unique key, their train or a child, and no longer are.
local function prune_kept()
  local set = store .. ':kept'
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', now, 'LIMIT', 0, MOST_READ)) do
    local job = load(id)
    if not job then
      put(set, id, false)
    elseif not prune_if_old(job) then
      put(set, id, false)
      put(store .. ':ended:' .. job.state, id, job.finished_at)
    end
  end
end

local function prune_ended(state)
  local set = store .. ':ended:' .. state
  local old = redis.call('ZRANGEBYSCORE', set, '-inf', '(' .. text(horizon), 'LIMIT', 0, MOST_READ)
  for _, id in ipairs(old) do
    local job = #gone < given.limit and id < given.before and load(id)
    if job then
      prune_if_old(job)
    elseif job == nil then
      put(set, id, false)
    end
  end
end

local function answer_prune()
  prune_kept()
  for _, state in ipairs(given.states) do
    prune_ended(state)
  end
  return gone
end
