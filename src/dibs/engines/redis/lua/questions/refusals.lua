-- What was noted of refused writes to this job.

local function answer_refusals()
  return redis.call('LRANGE', refusals_key(given.job), 0, -1)
end
