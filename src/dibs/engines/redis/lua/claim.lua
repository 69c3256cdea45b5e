-- uses: limits due
-- Lease up to `limit` ready jobs of these queues and kinds, best first.

local paused = names(redis.call('SMEMBERS', store .. ':paused'))
local limits = read_limits()

-- A line whose head is better than the others' is read on in pieces, so that many lines cost little each.
local function read_on(walk)
  local last = walk.at + walk.piece - 1
  walk.ranks, walk.here = redis.call('ZRANGE', walk.set, walk.at, last), 1
  walk.at = last + 1
end

-- In an exchange the settlements may just have blocked or ended who was ready.
local function is_leaving(walk)
  local planned = scores[walk.set]
  return planned and planned[walk.ranks[walk.here]] == false
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

-- In an exchange the settlements may just have let somebody through, who is in no line yet: a walk of one.
local function walks_of_one(is_wanted)
  local walks = {}
  for _, job in ipairs(let_through) do
    if is_wanted(job.queue, job.kind) then
      local walk = {line = line_of(job), queue = job.queue, kind = job.kind, job = job}
      walk.set, walk.ranks, walk.here, walk.piece = ready_key(walk.line), {rank(job)}, 1, 2
      walks[#walks + 1] = walk
    end
  end
  return walks
end

local function wanted_lines()
  local lines, queues, kinds = {}, some(given.queues), some(given.kinds)
  local in_queues, of_kinds = queues and names(queues), kinds and names(kinds)
  local function is_wanted(queue, kind)
    return not paused[queue] and (not queues or in_queues[queue]) and (not kinds or of_kinds[kind])
  end
  for _, line in ipairs(redis.call('SMEMBERS', store .. ':busy')) do
    local queue, kind = string.match(line, '^(.-)\n(.*)$')
    if is_wanted(queue, kind) then
      lines[#lines + 1] = {line = line, set = ready_key(line), queue = queue, kind = kind, at = 0}
    end
  end
  return lines, let_through[1] and walks_of_one(is_wanted) or {}
end

local function start_walks(limit)
  local walks, ones = wanted_lines()
  local rooms = {}
  for _, walk in ipairs(walks) do
    walk.piece = math.min(limit, math.ceil(2 * limit / #walks))
    read_on(walk)
  end
  for _, walk in ipairs(ones) do
    walks[#walks + 1] = walk
  end
  for _, walk in ipairs(walks) do
    if rooms[walk.queue] == nil then
      rooms[walk.queue] = room_in(walk.queue, limits) or limit
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

local function append(list, more)
  local size = #list
  for i = 1, #more do
    list[size + i] = more[i]
  end
end

-- What is said last holds.
local function attempts_in(flat)
  for i = #flat - 1, 1, -2 do
    if flat[i] == 'attempts' then
      return tonumber(flat[i + 1])
    end
  end
  return 0
end

-- The job as the caller gets it: what was stored, then what has changed. Nothing of it is loaded: that it is
-- ready is told by the place where it stands, and this is what a busy store does most. `job` is one that this
-- script let through, so that some of what has changed is only planned yet.
local function lease(member, line, kind, job)
  local id = string.sub(member, -36)
  local flat = redis.call('HGETALL', job_key(id))
  if #flat == 0 then
    place(ready_key(line), member, false)
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
  place(ready_key(line), member, false)
  place(ids_key('ready', line), id, false)
  place(ids_key('running', line), id, 0)
  place(store .. ':leases', id, lease_until)
  busy_lines[line] = true
  append(flat, news)
  append(flat, {'id', id})
  write_fields(job or {id = id}, news)
  return flat
end

local function answer_claims(flats)
  if taken > 0 then
    will('INCRBY', store .. ':token', taken)
  end
  return {given.look and is_overdue() or 0, unpack(flats)}
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
    local flat = lease(member, walk.line, walk.kind, walk.job)
    if flat then
      rooms[walk.queue] = rooms[walk.queue] - 1
      flats[#flats + 1] = flat
    end
  end
  return answer_claims(flats)
end
