-- The state of these jobs, and their last settlement: its token, and what was settled.

local function answer_settled()
  return gather(given.ids, function(id)
    local values = redis.call('HMGET', job_key(id), 'state', 'token', 'settled_token', 'settled_as')
    return values[1] and {id, unpack(values, 1, 4)}
  end)
end
