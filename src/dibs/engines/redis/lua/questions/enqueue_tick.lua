-- uses: states gates pipelines enqueue schedules
-- Set a schedule's last tick and enqueue its jobs; nothing if the schedule is not as the caller read it.

local function answer_enqueue_tick()
  if not schedules.is_as_read() then
    return {}
  end
  will('HSET', schedules.key(), given.schedule, given.tick)
  return answer_enqueue()
end
