-- How many jobs of each queue are ready, and since when the oldest is.

-- The ready jobs of a pair are ordered by priority, then by time: only the first of each priority is read.
local function ready_since(pair)
  local since, after = nil, '-'
  while true do
    local first = redis.call('ZRANGEBYLEX', ready_key(pair), after, '+', 'LIMIT', 0, 1)[1]
    if not first then
      return since
    end
    local run_at = (string.sub(first, 6, 17) - 100000000000) * 1000000 + string.sub(first, 18, 23)
    since = math.min(since or run_at, run_at)
    after = string.format('[%05d', string.sub(first, 1, 5) + 1)
  end
end

local function answer_backlog()
  local found, rows = {}, {}
  for _, pair in ipairs(redis.call('SMEMBERS', store .. ':busy')) do
    local queue, since = (queue_and_kind(pair)), ready_since(pair)
    if since then
      local sum = found[queue] or {jobs = 0, since = since}
      sum.jobs = sum.jobs + redis.call('ZCARD', ready_key(pair))
      sum.since = math.min(sum.since, since)
      found[queue] = sum
    end
  end
  for queue, sum in pairs(found) do
    rows[#rows + 1] = {queue, sum.jobs, text(sum.since)}
  end
  return rows
end
