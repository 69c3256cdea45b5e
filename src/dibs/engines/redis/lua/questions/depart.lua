-- uses: reading matching states gates pipelines
-- Take jobs that don't run out of this store, for another one, in the order of their ids. Returns them, and the id up
-- to which all were read, or '' if these are all.

local paused = names(redis.call('SMEMBERS', store .. ':paused'))
local NOT_RUNNING = {'scheduled', 'blocked', 'ready', 'succeeded', 'failed', 'cancelled'}

-- A waiting job of a train or slot goes only while its queue is paused: else the next job would be let through. A job
-- of a pipeline goes only after all its children have finished: they would stay behind. A held train stays.
local function may_go(job)
  if in_pipeline(job) and (not ENDED[job.state] or pipelines().is_waited_for(job.id)) then
    return false
  end
  if not (job.train or job.slot) then
    return true
  end
  local held_by = gates().gate_of(job).held_by
  if ENDED[job.state] then
    return held_by ~= job.id
  end
  return paused[job.queue] and not held_by
end

local function answer_depart()
  local sets = gather(id_sets(NOT_RUNNING), function(set) return set[1] end)
  local ids, page_ends = matching.page(sets, some(given.after), given.piece, false)
  local rows = {}
  for _, id in ipairs(ids) do
    if #rows == given.limit then
      break
    end
    local job, flat = load_whole(id)
    if job and may_go(job) then
      local text = cjson.encode(flat)
      forget(job)
      will('HSET', store .. ':departed', id, cjson.encode({given.store, text}))
      rows[#rows + 1] = {id, text}
    end
  end
  return {rows, page_ends or ''}
end
