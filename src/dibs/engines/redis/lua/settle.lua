-- uses: at_gates places moves turns steps enqueue
-- Apply these settlements, each only if its claim still holds the job; add the children of those that were.

-- A settlement's columns, in the order in which they are given.
local JOB, TOKEN, STATE, SETTLED_AS, PAUSE, REFUND, RESULT, ERRORS, MESSAGE, PIPELINE = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10

-- A job that somebody asked to cancel never goes back to waiting.
local function state_after(job, state)
  if job.cancel_reason and not ENDED[state] then
    return 'cancelled'
  end
  return state
end

local function note_settlement(job, one)
  change(job, 'settled_token', one[TOKEN], 'settled_as', one[SETTLED_AS])
  if one[ERRORS] ~= '[]' then
    change(job, 'errors', one[ERRORS])
  end
  if one[REFUND] then
    change(job, 'attempts', job.attempts - 1)
  end
  if some(one[PIPELINE]) and not job.pipeline_id then
    change(job, 'pipeline_id', one[PIPELINE])
    place(store .. ':pipeline:' .. job.pipeline_id, job.id, 0)
  end
end

local function apply(job, one)
  note_settlement(job, one)
  local state = state_after(job, one[STATE])
  if not ENDED[state] then
    back(job, state, some(one[PAUSE]) and text(now + one[PAUSE]))
    return
  end
  if some(one[RESULT]) then
    change(job, 'result', one[RESULT])
  end
  local asked = state == 'cancelled' and some(cancel_reason(job) or '')
  finish(job, state, some(one[MESSAGE]) or asked)
end

local function answer_settle()
  local applied, won = {}, {}
  for _, one in ipairs(given.settlements) do
    local job = held(one[JOB], one[TOKEN])
    if job then
      apply(job, one)
      won[job.id] = true
      applied[#applied + 1] = job.id
    end
  end
  for _, child in ipairs(given.children) do
    if won[child[PARENT_ID]] then
      store_new(child)
      wake(child[QUEUE])
    end
  end
  if steps_read then
    steps_read.go_on()
  end
  if turns_read then
    turns_read.open_gates()
  end
  return applied
end
