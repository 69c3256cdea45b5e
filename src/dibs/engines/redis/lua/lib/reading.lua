-- Whole jobs, and the sets that list their ids.

-- All of a job, and the same as a flat list, as the caller reads it.
local function load_whole(id)
  local flat = redis.call('HGETALL', job_key(id))
  if #flat == 0 then
    return nil
  end
  local job = {id = id}
  for i = 1, #flat, 2 do
    job[flat[i]] = some(flat[i + 1])
  end
  loaded[id] = job
  append(flat, {'id', id})
  return job, flat
end

-- The sets that list the ids of jobs in these states: {key, state, queue} each. Without a queue or a kind, of all.
local function id_sets(states, queue, kind)
  local found = {}
  for _, pair in ipairs(redis.call('SMEMBERS', store .. ':lines')) do
    local its_queue, its_kind = queue_and_kind(pair)
    if (not queue or queue == its_queue) and (not kind or kind == its_kind) then
      for _, state in ipairs(states) do
        found[#found + 1] = {ids_key(state, pair), state, its_queue}
      end
    end
  end
  return found
end
