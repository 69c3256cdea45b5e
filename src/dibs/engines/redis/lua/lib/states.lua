-- Changes of state: the sets that list a job, its end and its return, its unique key, its removal.
--
-- gates.lua and pipelines.lua are read when the first job that needs them is met. Most scripts meet none, and
-- defining all functions of both takes as long as settling a job.

local read_gates, gates_read, read_pipelines, pipelines_read

local function gates()
  gates_read = gates_read or read_gates()
  return gates_read
end

local function pipelines()
  pipelines_read = pipelines_read or read_pipelines()
  return pipelines_read
end

local function list_in_pipeline(job)
  put(store .. ':pipeline:' .. job.pipeline_id, job.id, 0)
  put(store .. ':pipelines', job.pipeline_id, 0)
end

-- Whether a job may have parents or children: the version of its pipeline's id says so (8, as byte 56).
local function in_pipeline(job)
  return job.pipeline_id and string.byte(job.pipeline_id, 15) == 56
end

-- Apply what the changes so far mean at gates and for children, so that states can be read.
local function follow_up()
  if pipelines_read then
    pipelines_read.go_on()
  end
  if gates_read then
    gates_read.open_gates()
  end
end

local function wake_let_through()
  for _, job in ipairs(let_through) do
    if not job.is_claimed then
      wake(job.queue)
    end
  end
end

-- -- Sets ----------------------------------------------------------------------------------------

local function list_live(job, state, pair, is_in)
  if job.position then
    gates().list_at_gate(job, state, is_in)
  end
  if state == 'ready' then
    put(ready_key(pair), rank(job), is_in and 0)
    busy_pairs[pair] = true
  elseif state == 'scheduled' then
    put(store .. ':scheduled', job.id, is_in and job.run_at)
  elseif state == 'running' then
    put(store .. ':leases', job.id, is_in and job.lease_until)
  elseif not job.position then
    put(store .. ':waiting', job.id, is_in and 0)
  end
end

local function leave(job)
  local pair = pair_of(job)
  put(ids_key(job.state, pair), job.id, false)
  if not ENDED[job.state] then
    list_live(job, job.state, pair, false)
    if job.state == 'running' then
      freed[job.queue] = (freed[job.queue] or 0) + 1
    end
    return
  end
  put(store .. ':ended:' .. job.state, job.id, false)
  if job.position or job.unique_until or in_pipeline(job) then
    put(store .. ':kept', job.id, false)
  end
end

local function enter(job, state)
  local pair = pair_of(job)
  job.state = state
  put(ids_key(state, pair), job.id, 0)
  if not ENDED[state] then
    list_live(job, state, pair, true)
    return
  end
  local kept = (job.position or job.unique_until) and gates().kept_until(job)
  if kept then
    put(store .. ':kept', job.id, kept)
  else
    put(store .. ':ended:' .. state, job.id, job.finished_at)
  end
end

-- -- Unique keys ---------------------------------------------------------------------------------

local function owner_of(unique_key)
  if keys_taken[unique_key] ~= nil then
    return keys_taken[unique_key]
  end
  return redis.call('HGET', store .. ':unique', unique_key)
end

local function keeps_key(job)
  return not ENDED[job.state] or (job.unique_until and tonumber(job.unique_until) > now)
end

-- The job that has a key: a live one, or a finished one that keeps it for a time.
local function holder_of(unique_key)
  local owner = owner_of(unique_key)
  local job = owner and load(owner)
  return job and keeps_key(job) and job
end

local function take_key(job)
  if job.unique_key then
    collect()
    keys_taken[job.unique_key] = job.id
  end
end

local function free_key(job)
  if job.unique_key and owner_of(job.unique_key) == job.id then
    collect()
    keys_taken[job.unique_key] = false
  end
end

-- Write the columns of a new job that differ from the default: {column, field, default} each.
local function change_unusual(job, new, columns)
  for _, column in ipairs(columns) do
    local value = some(new[column[1]])
    if value and value ~= column[3] then
      change(job, column[2], value)
    end
  end
end

-- -- Return, end, removal ------------------------------------------------------------------------

-- Wait in this state, unless the gate decides otherwise; with a new run_at, if one is given.
local function wait_again(job, state, run_at)
  leave(job)
  if run_at then
    change(job, 'run_at', run_at)
  end
  local waits = job.position and gates().waits_as(job, state) or state
  change(job, 'state', waits)
  enter(job, waits)
end

local function back_without_holder(job, state, run_at)
  wait_again(job, state, run_at)
  change(job, 'worker', '', 'lease_until', '')
end

local function finish(job, state, message)
  leave(job)
  change(job, 'state', state, 'finished_at', text(now), 'lease_until', '')
  if message or state == 'cancelled' then
    change(job, 'message', message or '')
  end
  if job.position then
    gates().end_at_gate(job, state)
  end
  if not keeps_key(job) then
    free_key(job)
  end
  enter(job, state)
  if in_pipeline(job) then
    pipelines().ended(job)
  end
end

-- With all its attempts, after it has left its old state.
local function begin_anew(job, state, run_at)
  change(job, 'state', state, 'run_at', run_at, 'attempts', 0, 'progress', 0, 'message', '',
    'result', '', 'finished_at', '', 'cancel_reason', '', 'worker', '', 'lease_until', '')
  enter(job, state)
end

-- Remove a job for good, with all that lists it.
local function forget(job)
  if job.position then
    gates().forget(job)
  end
  leave(job)
  free_key(job)
  if job.pipeline_id then
    put(store .. ':pipeline:' .. job.pipeline_id, job.id, false)
    left_pipelines[job.pipeline_id] = true
  end
  if in_pipeline(job) then
    pipelines().forgotten(job)
  end
  left_pairs[pair_of(job)] = true
  will('DEL', job_key(job.id), refusals_key(job.id))
end
