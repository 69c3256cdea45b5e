-- uses: at_gates places moves turns steps enqueue
-- Move a schedule's last tick from where it was seen, and enqueue its jobs; nothing if it is elsewhere by now.

local function answer_enqueue_tick()
  local last_tick = redis.call('HGET', store .. ':schedules', given.schedule)
  if (last_tick or nil) ~= some(given.since) then
    return {}
  end
  will('HSET', store .. ':schedules', given.schedule, given.tick)
  return answer_enqueue()
end
