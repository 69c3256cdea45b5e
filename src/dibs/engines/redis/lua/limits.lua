-- Queues, and how many of their jobs may run.

local function queue_of(line)
  return string.match(line, '^(.-)\n')
end

local function running_in(queue)
  local running = 0
  for _, line in ipairs(redis.call('SMEMBERS', store .. ':lines')) do
    if queue_of(line) == queue then
      running = running + redis.call('ZCARD', ids_key('running', line))
    end
  end
  return running - (freed[queue] or 0)
end

-- How many more of this queue may run; nil without a limit.
local function room_in(queue, limits)
  return limits[queue] and limits[queue] - running_in(queue)
end

local function read_limits()
  local limits = {}
  local flat = redis.call('HGETALL', store .. ':limits')
  for i = 1, #flat, 2 do
    limits[flat[i]] = tonumber(flat[i + 1])
  end
  return limits
end
