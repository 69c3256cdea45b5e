-- The queue-kind pairs that have ready jobs, of queues that are not paused.

local function answer_ready_lines()
  local paused = names(redis.call('SMEMBERS', store .. ':paused'))
  local in_queues = some(given.queues) and names(given.queues)
  return gather(redis.call('SMEMBERS', store .. ':busy'), function(pair)
    local queue, kind = queue_and_kind(pair)
    return not paused[queue] and (not in_queues or in_queues[queue]) and {queue, kind}
  end)
end
