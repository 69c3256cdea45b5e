-- uses: at_gates places moves forget turns steps
-- Remove jobs that ended in one of these states, longer ago than this.

local MOST_LOOKED_AT = 5000
local LOOK_AGAIN = 3600000000 -- microseconds

local horizon = now - given.older_than
local in_states = names(given.states)
local gone = {}

local function is_old(job)
  return in_states[job.state] and tonumber(job.finished_at) < horizon and job.id < given.before
end

-- Whoever waits for it lets it go when it ends. It is looked at again all the same: that one may be deleted by hand.
local function keep(job)
  place(store .. ':ended:' .. job.state, job.id, false)
  place(store .. ':kept', job.id, text(now + LOOK_AGAIN))
end

-- Whether it needs no more looking at.
local function prune_if_old(job)
  if #gone < given.limit and is_old(job) then
    if is_step(job) and steps().is_waited_for(job.id) then
      keep(job)
      return true
    end
    forget(job)
    gone[#gone + 1] = job.id
    return true
  end
  return false
end

-- Those that were kept for their unique key, or for their train, and no longer are.
local function look_at_kept()
  local set = store .. ':kept'
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', now, 'LIMIT', 0, MOST_LOOKED_AT)) do
    local job = load(id)
    if not job then
      drop_ghost(set, id)
    elseif not prune_if_old(job) then
      place(set, id, false)
      place(store .. ':ended:' .. job.state, id, job.finished_at)
    end
  end
end

local function look_at_ended(state)
  local set = store .. ':ended:' .. state
  local old = redis.call('ZRANGEBYSCORE', set, '-inf', '(' .. text(horizon), 'LIMIT', 0, MOST_LOOKED_AT)
  for _, id in ipairs(old) do
    local job = #gone < given.limit and id < given.before and load(id)
    if job then
      prune_if_old(job)
    elseif job == nil then
      drop_ghost(set, id)
    end
  end
end

local function answer_prune()
  look_at_kept()
  for _, state in ipairs(given.states) do
    look_at_ended(state)
  end
  return gone
end
