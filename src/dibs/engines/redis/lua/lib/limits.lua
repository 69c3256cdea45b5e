-- How many jobs of a queue may run.

local limits = {}

function limits.running_in(queue)
  local running = 0
  for _, pair in ipairs(redis.call('SMEMBERS', store .. ':lines')) do
    if queue_and_kind(pair) == queue then
      running = running + redis.call('ZCARD', ids_key('running', pair))
    end
  end
  return running - (freed[queue] or 0)
end

-- How many more jobs of this queue may run; nil without a limit.
function limits.room_in(queue)
  if not limits.by_queue then
    limits.by_queue = {}
    local flat = redis.call('HGETALL', store .. ':limits')
    for i = 1, #flat, 2 do
      limits.by_queue[flat[i]] = tonumber(flat[i + 1])
    end
  end
  local most = limits.by_queue[queue]
  return most and most - limits.running_in(queue)
end

-- Whether a queue is paused, and its limit or ''.
function limits.settings_of(queue)
  return redis.call('SISMEMBER', store .. ':paused', queue), redis.call('HGET', store .. ':limits', queue) or ''
end
