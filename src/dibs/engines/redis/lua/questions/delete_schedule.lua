-- uses: schedules
-- Remove a schedule.

local function answer_delete_schedule()
  if not redis.call('HGET', schedules.key(), given.schedule) then
    return {}
  end
  for _, what in ipairs({'', ':about', ':revision'}) do
    will('HDEL', schedules.key(what), given.schedule)
  end
  schedules.changed()
  return {given.schedule}
end
