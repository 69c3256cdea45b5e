-- How these jobs stand: what was settled last, by which token.

local function answer_settled()
  local answers = {}
  for _, id in ipairs(given.ids) do
    local values = redis.call('HMGET', job_key(id), 'state', 'token', 'settled_token', 'settled_as')
    if values[1] then
      answers[#answers + 1] = {id, unpack(values, 1, 4)}
    end
  end
  return answers
end
