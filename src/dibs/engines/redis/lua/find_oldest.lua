-- uses: whole_jobs matching
-- One page of the ids of jobs that match, oldest first, and where the next one begins: find.lua, the other way round.

local PAGE = 500

local function oldest_of(sets)
  local piece = math.max(20, math.ceil(PAGE / #sets))
  local ids, horizon = {}, nil
  for _, set in ipairs(sets) do
    local some_ids = redis.call('ZRANGEBYLEX', set, '(' .. given.after, '+', 'LIMIT', 0, piece)
    for _, id in ipairs(some_ids) do
      ids[#ids + 1] = id
    end
    local last = some_ids[piece]
    if last and (not horizon or last < horizon) then
      horizon = last
    end
  end
  table.sort(ids)
  return ids, horizon
end

-- {id after which the next page begins or '', id, id, …}
local function answer_find_oldest()
  local answer = {''}
  local sets = sources()
  if #sets == 0 then
    return answer
  end
  local ids, horizon = oldest_of(sets)
  for _, id in ipairs(ids) do
    if #answer > given.limit or (horizon and id > horizon) then
      break
    end
    local job = load_whole(id)
    if job and matches(job) then
      answer[#answer + 1] = id
    end
  end
  answer[1] = horizon or ''
  return answer
end
