-- uses: states gates pipelines enqueue
-- Set a schedule's last tick and enqueue its jobs; nothing if the last tick is not the one that the caller read.

local function answer_enqueue_tick()
  local last_tick = redis.call('HGET', store .. ':schedules', given.schedule)
  if (last_tick or nil) ~= some(given.since) then
    return {}
  end
  will('HSET', store .. ':schedules', given.schedule, given.tick)
  return answer_enqueue()
end
