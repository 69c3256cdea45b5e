-- uses: limits upkeep
-- Claim up to `limit` ready jobs of these queues and kinds, in the order of claiming.

local paused = names(redis.call('SMEMBERS', store .. ':paused'))

-- The ready jobs of a queue-kind pair are read in pieces, so that many pairs cost little each.
local function read_on(walk)
  local last = walk.at + walk.piece - 1
  walk.ranks, walk.here = redis.call('ZRANGE', walk.set, walk.at, last), 1
  walk.at = last + 1
end

-- In an exchange the settlements may have blocked or ended a job that was ready.
local function is_leaving(walk)
  local collected = scores[walk.set]
  return collected and collected[walk.ranks[walk.here]] == false
end

local function head(walk)
  while true do
    if walk.here > #walk.ranks then
      if #walk.ranks < walk.piece then
        return nil
      end
      read_on(walk)
    elseif is_leaving(walk) then
      walk.here = walk.here + 1
    else
      return walk.ranks[walk.here]
    end
  end
end

-- In an exchange the settlements may have let jobs through that are in no ready set yet: a walk of one job each.
local function walks_of_one(is_wanted)
  return gather(let_through, function(job)
    local walk = {pair = pair_of(job), queue = job.queue, kind = job.kind, job = job}
    walk.set, walk.ranks, walk.here, walk.piece = ready_key(walk.pair), {rank(job)}, 1, 2
    return is_wanted(job.queue, job.kind) and walk
  end)
end

local function wanted_walks()
  local queues, kinds = some(given.queues), some(given.kinds)
  local in_queues, of_kinds = queues and names(queues), kinds and names(kinds)
  local function is_wanted(queue, kind)
    return not paused[queue] and (not queues or in_queues[queue]) and (not kinds or of_kinds[kind])
  end
  local walks = gather(redis.call('SMEMBERS', store .. ':busy'), function(pair)
    local queue, kind = queue_and_kind(pair)
    return is_wanted(queue, kind) and {pair = pair, set = ready_key(pair), queue = queue, kind = kind, at = 0}
  end)
  return walks, let_through[1] and walks_of_one(is_wanted) or {}
end

local function start_walks(limit)
  local walks, ones = wanted_walks()
  local rooms = {}
  for _, walk in ipairs(walks) do
    walk.piece = math.min(limit, math.ceil(2 * limit / #walks))
    read_on(walk)
  end
  append(walks, ones)
  for _, walk in ipairs(walks) do
    if rooms[walk.queue] == nil then
      rooms[walk.queue] = limits.room_in(walk.queue) or limit
    end
  end
  return walks, rooms
end

local function best(walks, rooms)
  local chosen, least
  for _, walk in ipairs(walks) do
    local first = rooms[walk.queue] > 0 and head(walk)
    if first and (not least or first < least) then
      chosen, least = walk, first
    end
  end
  return chosen, least
end

local last_token = tonumber(redis.call('GET', store .. ':token') or '0')
local taken = 0

-- The last value of a field counts.
local function attempts_in(flat)
  for i = #flat - 1, 1, -2 do
    if flat[i] == 'attempts' then
      return tonumber(flat[i + 1])
    end
  end
  return 0
end

-- The job as the caller gets it: what was stored, then what has changed. It is not loaded first, because a busy store
-- does this most: the ready set says that it is ready. `job` is one that this script let through, so that some of its
-- changes are collected and not yet written.
local function claim_one(member, pair, kind, job)
  local id = string.sub(member, -36)
  local flat = redis.call('HGETALL', job_key(id))
  if #flat == 0 then
    put(ready_key(pair), member, false)
    return nil
  end
  if job then
    append(flat, fields[job])
    job.is_claimed = true
  end
  taken = taken + 1
  local lease_until = text(now + (given.leases[kind] or given.lease))
  local news = {
    'state', 'running', 'attempts', attempts_in(flat) + 1, 'worker', given.worker,
    'token', text(last_token + taken), 'claimed_at', text(now), 'lease_until', lease_until,
  }
  put(ready_key(pair), member, false)
  put(ids_key('ready', pair), id, false)
  put(ids_key('running', pair), id, 0)
  put(store .. ':leases', id, lease_until)
  busy_pairs[pair] = true
  append(flat, news)
  append(flat, {'id', id})
  write_fields(job or {id = id}, news)
  return flat
end

local function claims_of(flats)
  if taken > 0 then
    will('INCRBY', store .. ':token', taken)
  end
  return {given.look and upkeep.is_overdue() or 0, unpack(flats)}
end

local function answer_claim()
  local flats = {}
  local walks, rooms = start_walks(given.limit)
  while #flats < given.limit do
    local walk, member = best(walks, rooms)
    if not walk then
      break
    end
    walk.here = walk.here + 1
    local flat = claim_one(member, walk.pair, walk.kind, walk.job)
    if flat then
      rooms[walk.queue] = rooms[walk.queue] - 1
      flats[#flats + 1] = flat
    end
  end
  return claims_of(flats)
end
