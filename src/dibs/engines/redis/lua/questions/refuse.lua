-- Note a write of a claim that had lost this job: token, what was tried, time, worker. The newest twenty are kept.

local MOST_KEPT = 20

local function answer_refuse()
  if not exists(given.job) then
    return {}
  end
  local key, what = refusals_key(given.job), given.token .. '\n' .. given.tried .. '\n'
  for _, noted in ipairs(redis.call('LRANGE', key, 0, -1)) do
    if string.sub(noted, 1, #what) == what then
      return {}
    end
  end
  will('RPUSH', key, what .. text(now) .. '\n' .. (some(given.worker) or ''))
  will('LTRIM', key, -MOST_KEPT, -1)
  return {}
end
