-- The end of every script: all collected writes are made, after the last thing that can fail.

-- -- Commit --------------------------------------------------------------------------------------

local MOST_ARGUMENTS = 2000

local function write_in_pieces(command, key, arguments)
  for first = 1, #arguments, MOST_ARGUMENTS do
    local last = math.min(first + MOST_ARGUMENTS - 1, #arguments)
    redis.call(command, key, unpack(arguments, first, last))
  end
end

-- While a hash slot moves to another node, a key that is not here yet can be neither read nor written. Reading all
-- keys first turns that into an error before the first write.
local function check_all_here()
  local wanted = {}
  append(wanted, score_keys)
  append(wanted, gather(changed_jobs, function(job) return job_key(job.id) end))
  append(wanted, gather(commands, function(command) return command[2] end))
  write_in_pieces('EXISTS', store .. ':token', wanted)
end

-- The members to remove from each sorted set, and the ones to add.
local function removed_and_added()
  local removed, added = {}, {}
  for _, set in ipairs(score_keys) do
    local out, into = {}, {}
    for member, score in pairs(scores[set]) do
      if score then
        into[#into + 1] = score
        into[#into + 1] = member
      else
        out[#out + 1] = member
      end
    end
    removed[set], added[set] = out, into
  end
  return removed, added
end

local function write_pairs()
  for pair in pairs(new_pairs) do
    redis.call('SADD', store .. ':lines', pair)
  end
  for pair in pairs(busy_pairs) do
    local command = redis.call('EXISTS', ready_key(pair)) == 1 and 'SADD' or 'SREM'
    redis.call(command, store .. ':busy', pair)
  end
  for pair in pairs(left_pairs) do
    local sets = gather(STATES, function(state) return ids_key(state, pair) end)
    if redis.call('EXISTS', unpack(sets)) == 0 then
      redis.call('SREM', store .. ':lines', pair)
    end
  end
end

local function drop_empty_pipelines()
  for id in pairs(left_pipelines) do
    if redis.call('EXISTS', store .. ':pipeline:' .. id) == 0 then
      redis.call('ZREM', store .. ':pipelines', id)
    end
  end
end

-- Removals come first: a full server refuses only a first write that adds, so it refuses new jobs and yet lets
-- running ones end.
local function commit()
  if given.in_cluster then
    check_all_here()
  end
  local removed, added = removed_and_added()
  for _, set in ipairs(score_keys) do
    write_in_pieces('ZREM', set, removed[set])
  end
  for _, set in ipairs(score_keys) do
    write_in_pieces('ZADD', set, added[set])
  end
  for _, job in ipairs(changed_jobs) do
    redis.call('HSET', job_key(job.id), unpack(fields[job]))
  end
  for unique_key, id in pairs(keys_taken) do
    if id then
      redis.call('HSET', store .. ':unique', unique_key, id)
    else
      redis.call('HDEL', store .. ':unique', unique_key)
    end
  end
  for _, command in ipairs(commands) do
    redis.call(unpack(command))
  end
  write_pairs()
  drop_empty_pipelines()
  for queue in pairs(wakes) do
    redis.call('PUBLISH', store .. ':wake', queue)
  end
end
