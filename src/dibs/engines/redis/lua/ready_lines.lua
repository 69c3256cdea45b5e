-- The lines that have something to claim, of queues that are not paused.

local function answer_ready_lines()
  local answers = {}
  local paused = names(redis.call('SMEMBERS', store .. ':paused'))
  local in_queues = some(given.queues) and names(given.queues)
  for _, line in ipairs(redis.call('SMEMBERS', store .. ':busy')) do
    local queue, kind = string.match(line, '^(.-)\n(.*)$')
    if not paused[queue] and (not in_queues or in_queues[queue]) then
      answers[#answers + 1] = {queue, kind}
    end
  end
  return answers
end
