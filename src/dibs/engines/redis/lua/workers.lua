-- uses: due upcoming tick
-- Those heard of within this time.

local function answer_workers()
  local answers = {}
  local horizon = text(now - given.silence)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', store .. ':workers', horizon, '+inf')) do
    local flat = redis.call('HGETALL', worker_key(name))
    answers[#answers + 1] = {'name', name, unpack(flat)}
  end
  return answers
end
