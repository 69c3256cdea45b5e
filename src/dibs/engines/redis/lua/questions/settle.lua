-- uses: states gates pipelines enqueue
-- Apply these settlements, each only if its claim still holds the job; add the children of the ones that were applied.

-- A settlement's columns, in the order in which they are given.
local JOB, TOKEN, STATE, SETTLED_AS, PAUSE, REFUND, RESULT, ERRORS, MESSAGE, PIPELINE = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10

-- A job that was asked to stop never goes back to waiting.
local function state_after(job, state)
  return job.cancel_reason and not ENDED[state] and 'cancelled' or state
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
    list_in_pipeline(job)
  end
end

local function apply(job, one)
  note_settlement(job, one)
  local state = state_after(job, one[STATE])
  if not ENDED[state] then
    back_without_holder(job, state, some(one[PAUSE]) and text(now + one[PAUSE]))
    return
  end
  if some(one[RESULT]) then
    change(job, 'result', one[RESULT])
  end
  local asked = state == 'cancelled' and some(cancel_reason(job) or '')
  finish(job, state, some(one[MESSAGE]) or asked)
end

local function answer_settle()
  local applied = gather(given.settlements, function(one)
    local job = held(one[JOB], one[TOKEN])
    if not job then
      return nil
    end
    apply(job, one)
    return job.id
  end)
  local won = names(applied)
  for _, child in ipairs(given.children) do
    if won[child[PARENT_ID]] then
      store_new(child)
      wake(child[QUEUE])
    end
  end
  follow_up()
  return applied
end
