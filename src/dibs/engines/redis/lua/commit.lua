-- What every script ends with: all that it planned is written, after the last thing that can go wrong.

-- -- Commit --------------------------------------------------------------------------------------

local MOST_ARGUMENTS = 2000

local function write_in_pieces(command, key, arguments)
  for first = 1, #arguments, MOST_ARGUMENTS do
    local last = math.min(first + MOST_ARGUMENTS - 1, #arguments)
    redis.call(command, key, unpack(arguments, first, last))
  end
end

-- While its slot moves to another node, a key that is not here yet can be neither read nor written. Asking
-- for all of them first turns that into an error before the first write.
local function check_all_here()
  local wanted = {}
  for _, set in ipairs(score_keys) do
    wanted[#wanted + 1] = set
  end
  for _, job in ipairs(changed_jobs) do
    wanted[#wanted + 1] = job_key(job.id)
  end
  for _, command in ipairs(commands) do
    wanted[#wanted + 1] = command[2]
  end
  write_in_pieces('EXISTS', store .. ':token', wanted)
end

-- What goes, and what comes, of each sorted set.
local function sorted_out()
  local gone, come = {}, {}
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
    gone[set], come[set] = out, into
  end
  return gone, come
end

local function write_lines()
  for line in pairs(new_lines) do
    redis.call('SADD', store .. ':lines', line)
  end
  for line in pairs(busy_lines) do
    local command = redis.call('EXISTS', ready_key(line)) == 1 and 'SADD' or 'SREM'
    redis.call(command, store .. ':busy', line)
  end
  for line in pairs(left_lines) do
    local jobs = 0
    for _, state in ipairs(STATES) do
      jobs = jobs + redis.call('EXISTS', ids_key(state, line))
    end
    if jobs == 0 then
      redis.call('SREM', store .. ':lines', line)
    end
  end
end

-- First what takes out: a full store refuses a first write that adds, so it refuses new jobs and yet lets
-- running ones end.
local function commit()
  if given.in_cluster then
    check_all_here()
  end
  local gone, come = sorted_out()
  for _, set in ipairs(score_keys) do
    write_in_pieces('ZREM', set, gone[set])
  end
  for _, set in ipairs(score_keys) do
    write_in_pieces('ZADD', set, come[set])
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
  write_lines()
  for queue in pairs(wakes) do
    redis.call('PUBLISH', store .. ':wake', queue)
  end
end
