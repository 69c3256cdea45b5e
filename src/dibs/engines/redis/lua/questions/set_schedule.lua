-- uses: schedules
-- Write a schedule; nothing if it is not as the caller read it.

local function answer_set_schedule()
  if not schedules.is_as_read() then
    return {}
  end
  will('HSET', schedules.key(), given.schedule, given.tick)
  will('HSET', schedules.key(':about'), given.schedule, given.about)
  will('HSET', schedules.key(':revision'), given.schedule, given.new_revision)
  schedules.changed()
  wake('')
  return {given.schedule}
end
