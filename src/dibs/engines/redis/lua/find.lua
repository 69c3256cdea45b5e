-- uses: whole_jobs matching
-- One page of the jobs that match, newest first, and where the next one begins.
--
-- Every set that may hold matching ids gives its newest ones. What is older than the last of a set that has
-- more to give is left for the next page, so pages never overlap and never skip.

local PAGE = 500

local function newest_of(sets)
  local start = some(given.after) and '(' .. given.after or '+'
  local piece = math.max(20, math.ceil(PAGE / #sets))
  local ids, horizon = {}, nil
  for _, set in ipairs(sets) do
    local some_ids = redis.call('ZREVRANGEBYLEX', set, start, '-', 'LIMIT', 0, piece)
    for _, id in ipairs(some_ids) do
      ids[#ids + 1] = id
    end
    local last = some_ids[piece]
    if last and (not horizon or last > horizon) then
      horizon = last
    end
  end
  table.sort(ids, function(one, other) return one > other end)
  return ids, horizon
end

-- {id after which the next page begins or '', job, job, …}
local function answer_find()
  local answer = {''}
  local sets = sources()
  if #sets == 0 then
    return answer
  end
  local ids, horizon = newest_of(sets)
  for _, id in ipairs(ids) do
    if #answer > given.limit or (horizon and id < horizon) then
      break
    end
    local job, flat = load_whole(id)
    if job and matches(job) then
      answer[#answer + 1] = flat
    end
  end
  answer[1] = horizon or ''
  return answer
end
