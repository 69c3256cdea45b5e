-- A train or slot, and the sorted sets that list its jobs.
--
-- What Lua decides about trains and slots by itself, because reading, deciding and writing are one script:
--   opening.lua   open_train, open_slot   which jobs may go (`choose`, `fits`, `limit_of`: the strictest limit counts)
--                 offer                   how long a ready job may let others wait
--                 preempt                 which running jobs are asked to stop
--   gates.lua     waits_as, join          how a job waits, and at which position
--                 end_at_gate, is_first   whether the end of a job holds its train
--                 job_instead, supersede  the slot policies drop and replace
--                 find_positions          positions of jobs that a move brings
--   stage.lua     gives_way               which ready jobs of a slot give way when their offer has ended
--   claim_job.lua may_overtake            whether a blocked job of a slot may be claimed by its id
-- Python decides the same in `dibs.jobs`; tests/model/test_gates_agree.py compares both on random histories.

local known_gates, touched = {}, {}
local MOST_GHOSTS = 1000 -- entries of deleted jobs that one script removes from one gate

-- The members of a sorted set with equal scores, in order, as they will be after the commit. Pieces double, so
-- that a caller that needs only the first reads little.
local function walk(set)
  local added, stored, at, piece, here, next_added = {}, {}, 0, 1, 1, 1
  for member, score in pairs(scores[set] or {}) do
    if score then
      added[#added + 1] = member
    end
  end
  table.sort(added)
  local function next_stored()
    while true do
      if here > #stored then
        if at > 0 and #stored < piece then
          return nil
        end
        piece = at == 0 and 2 or math.min(piece * 2, 512)
        stored, here = redis.call('ZRANGE', set, at, at + piece - 1), 1
        at = at + piece
      elseif scores[set] and scores[set][stored[here]] ~= nil then
        here = here + 1
      else
        return stored[here]
      end
    end
  end
  return function()
    local one, other = next_stored(), added[next_added]
    if one and (not other or one < other) then
      here = here + 1
      return one
    end
    next_added = next_added + 1
    return other
  end
end

-- -- A job at its gate ---------------------------------------------------------------------------

-- The order at a gate: by position, then as in a ready set.
local function member_of(job)
  return string.format('%013d', job.position + 1000000000000) .. rank(job)
end

-- 'train:NAME' or 'slot:NAME'.
local function gate_key(job)
  return job.train and 'train:' .. job.train or 'slot:' .. job.slot
end

-- A slot lists its blocked jobs apart from the jobs that were let through. A claim writes neither list: a job that
-- was let through is ready or running, and its hash says which.
local function list_at_gate(job, state, is_in)
  local member, score = member_of(job), is_in and 0
  put(store .. ':members:' .. gate_key(job), member, score)
  if job.slot and state == 'blocked' then
    put(store .. ':line:' .. job.slot, member, score)
  elseif job.slot and state ~= 'scheduled' then
    put(store .. ':going:' .. job.slot, member, score)
  end
  if job.slot and state == 'running' and not is_in then
    put(store .. ':started:' .. job.slot, job.id, job.token)
  end
end

-- Whether a blocked job is in all the sets in which its gate will search for it.
local function is_listed(job)
  local key, member = gate_key(job), member_of(job)
  return redis.call('ZSCORE', store .. ':gates', key)
    and redis.call('ZSCORE', store .. ':members:' .. key, member)
    and (job.train or redis.call('ZSCORE', store .. ':line:' .. job.slot, member))
end

-- Finished, and not to be pruned: until its unique key is free, or while its train is held.
local function kept_until(job)
  if job.holds_train then
    return '+inf'
  end
  return job.unique_until and tonumber(job.unique_until) > now and job.unique_until
end

-- -- A gate --------------------------------------------------------------------------------------

local function members_key(gate)
  return store .. ':members:' .. gate.key
end

-- A counter that was deleted by hand must not give positions twice: the jobs know the greatest.
local function greatest_position(key)
  local greatest = 0
  for _, range in ipairs({'ZRANGE', 'ZREVRANGE'}) do
    local member = redis.call(range, store .. ':members:' .. key, 0, 0)[1]
    local position = member and string.sub(member, 1, 13) - 1000000000000 or 0
    greatest = math.max(greatest, math.abs(position))
  end
  return greatest
end

local function gate_named(key)
  if known_gates[key] then
    return known_gates[key]
  end
  local sort, name = string.match(key, '^(%a+):(.*)$')
  local values = redis.call('HMGET', store .. ':gate:' .. key, 'last_position', 'held_by')
  local gate = {key = key, sort = sort, name = name, held_by = some(values[2])}
  gate.last_position = tonumber(values[1] or greatest_position(key))
  gate.offer_ends = sort == 'slot' and tonumber(redis.call('ZSCORE', store .. ':offers', name) or nil)
  known_gates[key] = gate
  return gate
end

local function gate_of(job)
  return gate_named(gate_key(job))
end

-- Note that something changed at this gate: `open_gates` opens it once, however many jobs changed.
local function touch(gate)
  if not gate.is_touched then
    gate.is_touched = true
    touched[#touched + 1] = gate
  end
end

local function next_position(gate)
  gate.last_position = gate.last_position + 1
  return gate.last_position
end

-- The live jobs of one of a gate's sets, in order. Entries of jobs that were deleted by hand are removed on the way;
-- after `most_ghosts` of them the order is unknown, and the walk ends.
local function jobs_in(gate, set, most_ghosts)
  local next_member, ghosts = walk(set), 0
  return function()
    for member in next_member do
      local job = load(string.sub(member, -36))
      if job and job.position and not ENDED[job.state] then
        return job
      end
      put(set, member, false)
      put(members_key(gate), member, false)
      ghosts = ghosts + 1
      if ghosts == most_ghosts then
        gate.has_ghosts = true
        return nil
      end
    end
    return nil
  end
end

local function head_of(gate)
  return jobs_in(gate, members_key(gate), MOST_GHOSTS)()
end
