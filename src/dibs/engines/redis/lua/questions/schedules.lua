-- uses: schedules
-- All schedules: name, last tick, revision, and the text about each.

local function answer_schedules()
  local rows, ticks = {}, redis.call('HGETALL', schedules.key())
  for i = 1, #ticks, 2 do
    local name = ticks[i]
    local revision = redis.call('HGET', schedules.key(':revision'), name) or '0'
    rows[#rows + 1] = {name, ticks[i + 1], revision, redis.call('HGET', schedules.key(':about'), name) or ''}
  end
  return rows
end
