-- The columns of these jobs that change, without arguments and results.

local function changing_columns(id)
  local values = redis.call('HMGET', job_key(id), 'state', 'attempts', 'token', 'progress', 'message', 'run_at')
  return values[1] and {id, unpack(values, 1, 6)}
end

local function answer_glance()
  return gather(given.ids, changing_columns)
end
