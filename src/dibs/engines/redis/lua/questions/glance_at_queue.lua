-- uses: reading glance
-- The same of the newest jobs of a queue, or of all queues: the live ones, and the finished ones after an id.

local function newest_in(states, after)
  local ids, newest = {}, {}
  for _, set in ipairs(id_sets(states, some(given.queue))) do
    append(ids, redis.call('ZREVRANGEBYLEX', set[1], '+', after, 'LIMIT', 0, given.limit))
  end
  table.sort(ids, function(one, other) return one > other end)
  for i = 1, math.min(#ids, given.limit) do
    newest[i] = ids[i]
  end
  return newest
end

local function answer_glance_at_queue()
  local rows = gather(newest_in(LIVE, '-'), changing_columns)
  append(rows, gather(newest_in({'succeeded', 'failed', 'cancelled'}, '(' .. given.since), changing_columns))
  return rows
end
