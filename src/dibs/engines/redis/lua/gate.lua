-- A train or slot, the places there, and who has them.

local gates, touched = {}, {}
local MOST_GHOSTS = 1000 -- of one gate that one script takes away

-- The members of a sorted set whose scores are all 0, in their order, as they will be once this script has
-- committed. Pieces double, so that who needs only the first reads little.
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

-- -- A place at a gate ----------------------------------------------------------------------------

-- The order of turns at a gate: by position, then as in a ready line.
local function turn(job)
  return string.format('%013d', job.position + 1000000000000) .. rank(job)
end

-- 'train:NAME' or 'slot:NAME'.
local function gate_key(job)
  return job.train and 'train:' .. job.train or 'slot:' .. job.slot
end

-- A slot lists those who wait in its line apart from those who were let through. A claim moves nobody here:
-- who was let through is ready or running, and its own state says which.
local function place_at_gate(job, state, score)
  place(store .. ':members:' .. gate_key(job), turn(job), score)
  if job.slot and state == 'blocked' then
    place(store .. ':line:' .. job.slot, turn(job), score)
  elseif job.slot and state ~= 'scheduled' then
    place(store .. ':going:' .. job.slot, turn(job), score)
  end
end

local function take_place(job, state)
  place_at_gate(job, state, 0)
end

local function leave_place(job)
  place_at_gate(job, job.state, false)
  if job.slot and job.state == 'running' then
    place(store .. ':started:' .. job.slot, job.id, job.token)
  end
end

-- Whether one who is blocked is listed where those at its gate are looked for.
local function has_place(job)
  local key, member = gate_key(job), turn(job)
  return redis.call('ZSCORE', store .. ':gates', key)
    and redis.call('ZSCORE', store .. ':members:' .. key, member)
    and (job.train or redis.call('ZSCORE', store .. ':line:' .. job.slot, member))
end

-- Finished, and yet not to be pruned: until its unique key is free, or while its train waits for a person.
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

-- A counter that somebody deleted must not give positions twice: the jobs know the greatest.
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
  if gates[key] then
    return gates[key]
  end
  local sort, name = string.match(key, '^(%a+):(.*)$')
  local values = redis.call('HMGET', store .. ':gate:' .. key, 'last_position', 'held_by')
  local gate = {key = key, sort = sort, name = name, held_by = some(values[2])}
  gate.last_position = tonumber(values[1] or greatest_position(key))
  gate.offer_ends = sort == 'slot' and tonumber(redis.call('ZSCORE', store .. ':offers', name) or nil)
  gates[key] = gate
  return gate
end

local function gate_of(job)
  return gate_named(gate_key(job))
end

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

-- The live job that has this turn; nil if somebody deleted it by hand.
local function who_has(member)
  local job = load(string.sub(member, -36))
  return job and job.position and not ENDED[job.state] and job
end

local function drop_ghost_at(gate, set, member)
  drop_ghost(set, member)
  drop_ghost(members_key(gate), member)
end

-- The first who is really there. More ghosts than one script may take away: nobody knows who is first.
local function first_in(gate, set)
  local ghosts = 0
  for member in walk(set) do
    local job = who_has(member)
    if job then
      return job
    end
    drop_ghost_at(gate, set, member)
    ghosts = ghosts + 1
    if ghosts == MOST_GHOSTS then
      gate.has_ghosts = true
      return nil
    end
  end
  return nil
end
