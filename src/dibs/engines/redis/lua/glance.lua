-- What changes of these jobs, without what was given with them or came of them.

local function glanced(id)
  local values = redis.call(
    'HMGET', job_key(id), 'state', 'attempts', 'token', 'progress', 'message', 'run_at'
  )
  return values[1] and {id, unpack(values, 1, 6)}
end

local function answer_glance()
  local answers = {}
  for _, id in ipairs(given.ids) do
    answers[#answers + 1] = glanced(id) or nil
  end
  return answers
end
