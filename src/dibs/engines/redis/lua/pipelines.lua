-- What these pipelines are called; without ids, a page of those that are not done, and where the next one begins.

local MOST_LOOKED_AT = 2000

local function about(id)
  local values = redis.call('HMGET', store .. ':drawn:' .. id, 'name', 'on_failed')
  return values[1] and {id, values[1], values[2]}
end

-- Whether one of its jobs has not ended, and how many it took to know.
local function has_live_jobs(id)
  local jobs = redis.call('ZREVRANGE', store .. ':pipeline:' .. id, 0, -1)
  for looked_at, job in ipairs(jobs) do
    local state = redis.call('HGET', job_key(job), 'state')
    if state and not ENDED[state] then
      return true, looked_at
    end
  end
  return false, #jobs
end

local function open_ones()
  local answers, looked_at, last = {''}, 0, nil
  local after = some(given.after) and '(' .. given.after or '-'
  for _, id in ipairs(redis.call('ZRANGEBYLEX', store .. ':drawn', after, '+', 'LIMIT', 0, MOST_LOOKED_AT)) do
    if looked_at > MOST_LOOKED_AT or #answers > 100 then
      answers[1] = last
      return answers
    end
    local is_open, jobs = has_live_jobs(id)
    answers[#answers + 1] = is_open and about(id) or nil
    looked_at, last = looked_at + jobs + 1, id
  end
  return answers
end

local function answer_pipelines()
  if given.ids == cjson.null then
    return open_ones()
  end
  local answers = {''}
  for _, id in ipairs(given.ids) do
    answers[#answers + 1] = about(id) or nil
  end
  return answers
end
