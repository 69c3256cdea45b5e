-- Name and policy of these pipelines; without ids, a page of the pipelines with live jobs, and where the next begins.

local MOST_READ = 2000

local function row_of(id)
  local values = redis.call('HMGET', store .. ':drawn:' .. id, 'name', 'on_failed')
  return values[1] and {id, values[1], values[2]}
end

-- Whether a pipeline has a live job, and how many jobs were read to find out.
local function has_live_jobs(id)
  local jobs = redis.call('ZREVRANGE', store .. ':pipeline:' .. id, 0, -1)
  for read, job in ipairs(jobs) do
    local state = redis.call('HGET', job_key(job), 'state')
    if state and not ENDED[state] then
      return true, read
    end
  end
  return false, #jobs
end

local function page_of_live()
  local rows, read, last = {''}, 0, nil
  local after = some(given.after) and '(' .. given.after or '-'
  for _, id in ipairs(redis.call('ZRANGEBYLEX', store .. ':drawn', after, '+', 'LIMIT', 0, MOST_READ)) do
    if read > MOST_READ or #rows > 100 then
      rows[1] = last
      return rows
    end
    local is_live, jobs = has_live_jobs(id)
    rows[#rows + 1] = is_live and row_of(id) or nil
    read, last = read + jobs + 1, id
  end
  return rows
end

local function answer_pipelines()
  if given.ids == cjson.null then
    return page_of_live()
  end
  local rows = {''}
  append(rows, gather(given.ids, row_of))
  return rows
end
