-- Every schedule that ever ticked, and its last tick.

local function answer_schedules()
  return redis.call('HGETALL', store .. ':schedules')
end
