-- uses: reading limits
-- Queues that have live jobs or a setting.

local function live_jobs()
  local found = {}
  for _, set in ipairs(id_sets(LIVE)) do
    local key, state, queue = unpack(set)
    local jobs = redis.call('ZCARD', key)
    if jobs > 0 then
      found[queue] = found[queue] or {}
      found[queue][state] = (found[queue][state] or 0) + jobs
    end
  end
  return found
end

local function answer_queues()
  local found = live_jobs()
  for _, queue in ipairs(redis.call('SMEMBERS', store .. ':settings')) do
    found[queue] = found[queue] or {}
  end
  local rows = {}
  for queue, states in pairs(found) do
    local is_paused, limit = limits.settings_of(queue)
    rows[#rows + 1] = {queue, '', 0, is_paused, limit}
    for state, jobs in pairs(states) do
      rows[#rows + 1] = {queue, state, jobs, is_paused, limit}
    end
  end
  return rows
end
