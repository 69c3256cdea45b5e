-- uses: reading
-- Some jobs of a pipeline by state: {state, how many, the sum of their progress} each; and whether there are more.

local PIECE = 2000

local function answer_pipeline_counts()
  local ids = redis.call('ZRANGE', store .. ':pipeline:' .. given.id, given.first, given.first + PIECE - 1)
  local jobs, progress = {}, {}
  for _, id in ipairs(ids) do
    local values = redis.call('HMGET', job_key(id), 'state', 'progress')
    local state = values[1]
    if state then
      jobs[state] = (jobs[state] or 0) + 1
      progress[state] = (progress[state] or 0) + (tonumber(some(values[2])) or 0)
    end
  end
  local rows = gather(STATES, function(state)
    return jobs[state] and {state, jobs[state], tostring(progress[state])}
  end)
  return {#ids == PIECE and given.first + PIECE or 0, rows}
end
