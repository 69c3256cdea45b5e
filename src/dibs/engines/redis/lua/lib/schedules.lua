-- A schedule is an entry in each of three hashes.

local schedules = {}

function schedules.key(what)
  return store .. ':schedules' .. (what or '')
end

-- Whether last tick and revision of the schedule are the ones that the caller read.
function schedules.is_as_read()
  local last_tick = redis.call('HGET', schedules.key(), given.schedule)
  local revision = redis.call('HGET', schedules.key(':revision'), given.schedule) or '0'
  return (last_tick or nil) == some(given.since) and (not last_tick or revision == given.revision)
end

function schedules.changed()
  will('INCR', schedules.key(':count'))
end
