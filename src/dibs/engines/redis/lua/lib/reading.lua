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

-- Whether all of the text fits a pattern with '*', or there is none; without backtracking.
local function is_like(value, pattern)
  if not some(pattern) then
    return true
  end
  local first, rest, last = string.match(pattern, '^([^*]*)(.*)%*([^*]*)$')
  local stop = #value - #last
  if stop < #first or string.sub(value, 1, #first) ~= first or string.sub(value, stop + 1) ~= last then
    return false
  end
  local at = #first + 1
  for part in string.gmatch(rest, '[^*]+') do
    local start, found = string.find(value, part, at, true)
    if not start or found > stop then
      return false
    end
    at = found + 1
  end
  return true
end

-- The sets that list the ids of jobs in these states: {key, state, queue} each. Without a queue or a kind, of all.
local function id_sets(states, queue, kind)
  local found = {}
  for _, pair in ipairs(redis.call('SMEMBERS', store .. ':lines')) do
    local its_queue, its_kind = queue_and_kind(pair)
    local is_wanted = (not queue or queue == its_queue) and (not kind or kind == its_kind)
    if is_wanted and is_like(its_queue, given.queue_like) and is_like(its_kind, given.kind_like) then
      for _, state in ipairs(states) do
        found[#found + 1] = {ids_key(state, pair), state, its_queue}
      end
    end
  end
  return found
end
