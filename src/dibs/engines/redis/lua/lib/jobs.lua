-- A job as scripts read it, and the names of the sets that list it.

local loaded = {}
local WORKING = {
  'state', 'queue', 'kind', 'priority', 'run_at', 'token', 'attempts', 'max_attempts', 'unique_key',
  'pipeline_id', 'cancel_reason', 'worker', 'lease_until', 'finished_at', 'position',
}
-- Only a job with a position at a gate, or with a unique key, can have these.
local AT_GATES = {'train', 'slot', 'slot_limit', 'on_cancelled', 'on_failed', 'unique_until'}

local function job_key(id)
  return store .. ':job:' .. id
end

local function refusals_key(id)
  return store .. ':refusals:' .. id
end

local function exists(id)
  return loaded[id] or redis.call('EXISTS', job_key(id)) == 1
end

local function load_columns(job, columns)
  local values = redis.call('HMGET', job_key(job.id), unpack(columns))
  for i, name in ipairs(columns) do
    job[name] = some(values[i])
  end
end

-- The columns that decisions need; nil if there is no such job.
local function load(id)
  if loaded[id] then
    return loaded[id]
  end
  local job = {id = id}
  load_columns(job, WORKING)
  if not job.state then
    return nil
  end
  if job.position or job.unique_key then
    load_columns(job, AT_GATES)
  end
  loaded[id] = job
  return job
end

local function held(id, token)
  local job = load(id)
  return job and job.state == 'running' and job.token == token and job or nil
end

-- The reason of a request to stop; nil without a request. In the hash '!' stands before it, because an empty
-- reason is a request, too.
local function cancel_reason(job)
  return job.cancel_reason and string.sub(job.cancel_reason, 2)
end

-- -- Queue-kind pairs ----------------------------------------------------------------------------

local function pair_of(job)
  return job.queue .. '\n' .. job.kind
end

local function queue_and_kind(pair)
  return string.match(pair, '^(.-)\n(.*)$')
end

local function ids_key(state, pair)
  return store .. ':ids:' .. state .. ':' .. pair
end

local function ready_key(pair)
  return store .. ':ready:' .. pair
end

-- Fixed width, so that the order of bytes is priority (highest first), run_at, id. The score of every
-- member is 0: a double could not hold all three.
local function rank(job)
  local seconds, micros = parts(job.run_at)
  return string.format('%05d%012d%06d', 32767 - job.priority, seconds + 100000000000, micros) .. job.id
end
