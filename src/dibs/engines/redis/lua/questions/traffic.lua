-- uses: reading
-- How many jobs of each queue have an id after `since`, and how many of the kept ones failed.

local function answer_traffic()
  local found, rows = {}, {}
  for _, set in ipairs(id_sets(STATES)) do
    local queue = set[3]
    local sum = found[queue] or {0, 0}
    local failed = set[2] == 'failed' and redis.call('ZCARD', set[1]) or 0
    found[queue] = {sum[1] + redis.call('ZLEXCOUNT', set[1], '(' .. given.since, '+'), sum[2] + failed}
  end
  for queue, sum in pairs(found) do
    append(rows, {{queue, 'enqueued', sum[1]}, {queue, 'failed', sum[2]}})
  end
  return rows
end
