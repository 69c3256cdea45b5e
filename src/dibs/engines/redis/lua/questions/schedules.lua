-- All schedules that have ticked, with their last tick.

local function answer_schedules()
  return redis.call('HGETALL', store .. ':schedules')
end
