-- uses: limits glance
-- The same of a queue's newest jobs, or of all queues: the live ones, and those finished ones that are new.

local function newest_in(states, least)
  local ids = {}
  for _, line in ipairs(redis.call('SMEMBERS', store .. ':lines')) do
    if not some(given.queue) or given.queue == queue_of(line) then
      for _, state in ipairs(states) do
        local set = ids_key(state, line)
        for _, id in ipairs(redis.call('ZREVRANGEBYLEX', set, '+', least, 'LIMIT', 0, given.limit)) do
          ids[#ids + 1] = id
        end
      end
    end
  end
  table.sort(ids, function(one, other) return one > other end)
  return ids
end

local function answer_glance_at_queue()
  local answers = {}
  for _, ids in ipairs({newest_in(LIVE, '-'), newest_in({'succeeded', 'failed', 'cancelled'}, '(' .. given.since)}) do
    for i = 1, math.min(#ids, given.limit) do
      answers[#answers + 1] = glanced(ids[i]) or nil
    end
  end
  return answers
end
