-- uses: limits
-- How many jobs there are in each state: of one queue, or of all.

local function answer_counts()
  local found = {}
  for _, line in ipairs(redis.call('SMEMBERS', store .. ':lines')) do
    if not some(given.queue) or given.queue == queue_of(line) then
      for _, state in ipairs(STATES) do
        found[state] = (found[state] or 0) + redis.call('ZCARD', ids_key(state, line))
      end
    end
  end
  local answers = {}
  for state, jobs in pairs(found) do
    answers[#answers + 1] = {state, jobs}
  end
  return answers
end
