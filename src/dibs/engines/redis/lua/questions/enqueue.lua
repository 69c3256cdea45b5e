-- uses: states gates pipelines
-- Store these jobs; by id once, by unique key once while it is taken.

-- A new job's columns, in the order in which they are given.
local ID, KIND, QUEUE, ARGS, PRIORITY, RUN_AT, DELAY, MAX_ATTEMPTS = 1, 2, 3, 4, 5, 6, 7, 8
local UNIQUE_KEY, ON_CANCELLED, ON_FAILED, PIPELINE_ID, PARENT_ID, TAGS, META = 9, 10, 11, 12, 13, 14, 15
local TRAIN, SLOT, UNIQUE_FOR, REPLACES = 16, 17, 20, 21 -- 18 and 19 are for gates.lua

-- Columns that are stored only where they differ from the default.
local USUAL = {
  {ON_CANCELLED, 'on_cancelled', 'advance'},
  {ON_FAILED, 'on_failed', 'advance'},
  {PIPELINE_ID, 'pipeline_id'},
  {PARENT_ID, 'parent_id'},
  {UNIQUE_KEY, 'unique_key'},
  {TAGS, 'tags', '[]'},
  {META, 'meta', '{}'},
}

local function run_at_of(new)
  return some(new[RUN_AT]) or text(now + (some(new[DELAY]) or 0))
end

local function write_new(new, waits)
  local run_at = run_at_of(new)
  local job = {id = new[ID], is_new = true}
  loaded[job.id] = job
  local state = waits and 'blocked' or state_by_time(run_at)
  change(job, 'kind', new[KIND], 'queue', new[QUEUE], 'args', new[ARGS], 'priority', new[PRIORITY],
    'max_attempts', new[MAX_ATTEMPTS], 'run_at', run_at, 'enqueued_at', text(now), 'state', state)
  change_unusual(job, new, USUAL)
  if some(new[UNIQUE_FOR]) then
    change(job, 'unique_until', text(now + new[UNIQUE_FOR]))
  end
  if some(new[TRAIN]) or some(new[SLOT]) then
    gates()[waits and 'name_gate' or 'join_new'](job, new)
  end
  if job.pipeline_id then
    list_in_pipeline(job)
  end
  take_key(job)
  enter(job, job.state)
  new_pairs[pair_of(job)] = true
  return job
end

-- The job that is stored, or the one that has its id or its key, or is in its slot.
local function store_new(new)
  -- Read also when it is fresh: another thread with the same new job may have come first.
  if exists(new[ID]) then
    return {id = new[ID]}
  end
  local unique_key = some(new[UNIQUE_KEY])
  local holder = unique_key and holder_of(unique_key)
  if holder then
    if new[REPLACES] == true then
      gates().replace(holder, new[ARGS], run_at_of(new))
    end
    return holder
  end
  return some(new[SLOT]) and gates().apply_slot_policy(new) or write_new(new)
end

local function wake_queues()
  for _, queue in ipairs(given.wake) do
    wake(queue)
  end
end

-- {state, run_at} of a job that is new, {'', id of the job that is there instead} of one that is not.
local function answer_enqueue()
  local stored, rows = gather(given.jobs, store_new), {text(now)}
  follow_up()
  for i, job in ipairs(stored) do
    local is_new = job.is_new and job.id == given.jobs[i][ID]
    rows[i + 1] = is_new and {job.state, job.run_at} or {'', job.id}
  end
  wake_queues()
  return rows
end
