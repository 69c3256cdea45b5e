-- uses: whole_jobs at_gates places moves forget turns steps
-- Take jobs that don't run out of this store, for another one, in the order of their ids.
--
-- As in `find`, every set that may hold ids gives its first ones; what comes after the last of a set that has
-- more to give is left for the next time, so that nothing is passed by. Answers how far it looked, if not to the
-- end: fewer than asked for up to there may mean that there is somebody behind.

local function first_ids()
  local start = some(given.after) and '(' .. given.after or '-'
  local ids, horizon = {}, nil
  for _, line in ipairs(redis.call('SMEMBERS', store .. ':lines')) do
    for _, state in ipairs(STATES) do
      if state ~= 'running' then
        local some_ids = redis.call('ZRANGEBYLEX', ids_key(state, line), start, '+', 'LIMIT', 0, given.look)
        for _, id in ipairs(some_ids) do
          ids[#ids + 1] = id
        end
        local last = some_ids[given.look]
        if last and (not horizon or last < horizon) then
          horizon = last
        end
      end
    end
  end
  table.sort(ids)
  return ids, horizon
end

local paused = names(redis.call('SMEMBERS', store .. ':paused'))

-- Who waits in a train or for a slot goes only while nobody can be claimed there: else the next would be let go.
-- Steps go only once nobody waits: who waits for whom would stay behind. A held train stays with the person it waits for.
local function may_go(job)
  if is_step(job) and (not ENDED[job.state] or steps().is_waited_for(job.id)) then
    return false
  end
  if not (job.train or job.slot) then
    return true
  end
  local held_by = turns().gate_of(job).held_by
  if ENDED[job.state] then
    return held_by ~= job.id
  end
  return paused[job.queue] and not held_by
end

local function answer_depart()
  local answers = {}
  local ids, horizon = first_ids()
  for _, id in ipairs(ids) do
    if #answers == given.limit or (horizon and id > horizon) then
      break
    end
    local job, flat = load_whole(id)
    if job and may_go(job) then
      local text = cjson.encode(flat)
      forget(job)
      will('HSET', store .. ':departed', id, cjson.encode({given.store, text}))
      answers[#answers + 1] = {id, text}
    end
  end
  return {answers, horizon or ''}
end
