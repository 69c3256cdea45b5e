-- uses: gate opening
-- What jobs do at trains and slots: take a place, wait, end, make room. With the files it uses this is a module, read
-- by the first who is at a gate (at_gates.lua).

-- Columns of a new job, as enqueue.lua numbers them; stored where they differ from what a reader takes for granted.
local ID, TRAIN, SLOT, SLOT_POLICY, SLOT_LIMIT = 1, 16, 17, 18, 19
local USUAL = {{TRAIN, 'train'}, {SLOT, 'slot'}, {SLOT_POLICY, 'slot_policy', 'wait'}, {SLOT_LIMIT, 'slot_limit', 1}}

-- -- Moves at a gate -----------------------------------------------------------------------------

-- In which state a job waits that would be in this one without its gate.
local function waits_as(job, state)
  if job.slot then
    touch(gate_of(job))
    return by_time(job) == 'ready' and 'blocked' or 'scheduled'
  end
  -- A head keeps its place, so it needs no gate; a follower stays one.
  return job.state == 'blocked' and 'blocked' or state
end

local function is_first(gate, job)
  local first = first_in(gate, members_key(gate))
  return not first or turn(job) < turn(first)
end

-- Its place is empty already: the next one may go, or a person must come.
local function end_at_gate(job, state)
  local gate = gate_of(job)
  local policy = state == 'cancelled' and job.on_cancelled or state == 'failed' and job.on_failed
  touch(gate)
  if job.train and policy == 'hold' and not gate.held_by and is_first(gate, job) then
    gate.held_by, job.holds_train = job.id, true
  end
end

-- What held a train was deleted, released or retried.
local function let_go(gate)
  local job = load(gate.held_by)
  if job and ENDED[job.state] then
    place(store .. ':kept', job.id, job.unique_until or text(now))
  end
  gate.held_by = nil
  touch(gate)
end

-- A place for a job: the end of its train; of a slot none in particular, or before all who have one. Answers how
-- it waits there.
local function join(job, policy)
  local gate, position = gate_of(job), 0
  if job.train then
    position = next_position(gate)
  elseif policy == 'preempt' then
    position = -next_position(gate)
  end
  change(job, 'position', position)
  touch(gate)
  return waits_as(job, 'blocked')
end

-- Deleted: what it held goes on.
local function forget_at_gate(job)
  local gate = gate_of(job)
  if gate.held_by == job.id then
    let_go(gate)
  elseif not ENDED[job.state] then
    touch(gate)
  end
  place(store .. ':gated:' .. gate.key, job.id, false)
  if job.slot then
    place(store .. ':started:' .. job.slot, job.id, false)
  end
end

-- -- Policies of slots ---------------------------------------------------------------------------

local function slot_named(name)
  return gate_named('slot:' .. name)
end

-- Who keeps the place of a new job with the policy `drop`, if its slot is full: who runs, else who is first.
local function kept_instead(slot, limit)
  local gate, jobs = slot_named(slot), 0
  local set, first = members_key(gate), nil
  for member in walk(set) do
    local job = who_has(member)
    if job then
      first, jobs, limit = first or job, jobs + 1, math.min(limit, limit_of(job))
    else
      drop_ghost(set, member)
    end
    if jobs >= limit then
      local running = going_in(gate)
      table.sort(running, function(one, other) return turn(one) < turn(other) end)
      return running[1] or first
    end
  end
  return nil
end

-- Those whom the policy `replace` tells to make room.
local function waiting_in(slot)
  local found = {}
  for member in walk(members_key(slot_named(slot))) do
    local job = who_has(member)
    if job and job.state ~= 'running' then
      found[#found + 1] = job
    end
  end
  return found
end

local function supersede(slot, id)
  for _, job in ipairs(waiting_in(slot)) do
    finish(job, 'cancelled', 'superseded by ' .. id)
  end
end

-- By the policy of its slot a new job makes those who wait give up, or is itself given up for who is answered.
local function make_room(new)
  if new[SLOT_POLICY] == 'drop' then
    return kept_instead(new[SLOT], new[SLOT_LIMIT])
  end
  if new[SLOT_POLICY] == 'replace' then
    supersede(new[SLOT], new[ID])
  end
  return nil
end

-- -- What an enqueue does ------------------------------------------------------------------------

-- Where a job has its place, or will have it once its parents have succeeded.
local function name_gate(job, new)
  for _, column in ipairs(USUAL) do
    local value = some(new[column[1]])
    if value and value ~= column[3] then
      change(job, column[2], value)
    end
  end
  place(store .. ':gated:' .. gate_key(job), job.id, 0)
end

local function place_new(job, new)
  name_gate(job, new)
  job.state = 'blocked'
  change(job, 'state', join(job, new[SLOT_POLICY]))
end

local function is_taken(gate, position)
  local from = string.format('[%013d', position + 1000000000000)
  local to = string.format('(%013d', position + 1000000000001)
  return #redis.call('ZRANGEBYLEX', members_key(gate), from, to, 'LIMIT', 0, 1) > 0
end

-- A place is taken, who runs would be behind them, or the train waits for a person.
local function clash(gate, jobs)
  local head = first_in(gate, members_key(gate))
  if gate.held_by or head and head.state == 'running' and tonumber(head.position) >= jobs[1].position then
    return true
  end
  for _, job in ipairs(jobs) do
    if is_taken(gate, job.position) then
      return true
    end
  end
  return false
end

-- Those who come to a train from another store go to its end, if one of them can't have its old place.
local function find_places(train, jobs, places)
  local gate = gate_named('train:' .. train)
  table.sort(jobs, function(one, other) return one.position < other.position end)
  if clash(gate, jobs) then
    for nth, job in ipairs(jobs) do
      places[job.id] = gate.last_position + nth
    end
  end
end

-- One that comes from another store has its place from there, perhaps before who is here already.
local function take_in(job)
  local gate = gate_of(job)
  place(store .. ':gated:' .. gate.key, job.id, 0)
  if job.slot and job.token then
    place(store .. ':started:' .. job.slot, job.id, job.token)
  end
  if ENDED[job.state] then
    return
  end
  local head = job.train and first_in(gate, members_key(gate))
  if head and (head.state == 'ready' or head.state == 'scheduled') then
    move(head, 'blocked')
  end
  if job.position then
    gate.last_position = math.max(gate.last_position, math.abs(job.position))
    touch(gate)
  else
    join(job, job.slot_policy)
  end
  job.state = 'blocked'
  change(job, 'state', waits_as(job, 'blocked'))
end

-- A waiting job gets the arguments and the time of a new one with its key; one that runs or ran is kept.
local function replace(job, args, run_at)
  if job.state ~= 'running' and not ENDED[job.state] then
    change(job, 'args', args)
    wait_again(job, tonumber(run_at) <= now and 'ready' or 'scheduled', run_at)
    wake(job.queue)
  end
end

return {
  take_place = take_place, has_place = has_place, leave_place = leave_place, kept_until = kept_until, place_new = place_new, name_gate = name_gate,
 
  gate_named = gate_named, gate_of = gate_of, members_key = members_key, first_in = first_in, going_in = going_in, first_in_line = first_in_line,
  touch = touch, next_position = next_position, fits = fits, limit_of = limit_of,
  waits_as = waits_as, join = join, end_at_gate = end_at_gate, let_go = let_go, forget = forget_at_gate,
  make_room = make_room, supersede = supersede, replace = replace, take_in = take_in, find_places = find_places, open_gates = open_gates, save_gates = save_gates,
}
