-- Who may go at trains and slots: the rules of ADR 12, spelled out in jobs/gates.py.
--
-- A move at a gate only says that it was there (`touch`). `open_gates` then lets through who may go, once for each
-- gate, however many moved there; `save_gates` plans what is left to write.

local function move(job, state)
  leave(job)
  change(job, 'state', state)
  enter(job, state)
  if state == 'ready' and not job.is_new then
    let_through[#let_through + 1] = job
  end
end

local function by_time(job)
  return tonumber(job.run_at) <= now and 'ready' or 'scheduled'
end

local function limit_of(job)
  return tonumber(job.slot_limit or 1)
end

local function least_limit(jobs)
  local least = math.huge
  for _, job in ipairs(jobs) do
    least = math.min(least, limit_of(job))
  end
  return least
end

-- Whether a job may go beside these: the strictest limit counts.
local function fits(limit, jobs)
  return #jobs < math.min(limit, least_limit(jobs))
end

local function open_train(gate, head)
  if head and head.state == 'blocked' and not gate.held_by then
    move(head, by_time(head))
  end
end

-- Those whom a slot let through: the running by their start, the ready by their turn.
local function going_in(gate)
  local running, ready = {}, {}
  local set = store .. ':going:' .. gate.name
  for member in walk(set) do
    local job = who_has(member)
    if not job then
      drop_ghost_at(gate, set, member)
    else
      local list = job.state == 'running' and running or ready
      list[#list + 1] = job
    end
  end
  table.sort(running, function(one, other) return tonumber(one.token) < tonumber(other.token) end)
  return running, ready
end

-- Those who wait, the first of them, by their turn.
local function first_in_line(gate, limit)
  local set, waiting = store .. ':line:' .. gate.name, {}
  for member in walk(set) do
    local job = who_has(member)
    if job then
      waiting[#waiting + 1] = job
    else
      drop_ghost_at(gate, set, member)
    end
    if #waiting == limit then
      break
    end
  end
  return waiting
end

-- Of the blocked and the ready, who goes beside the running, and the first who does not.
local function choose(gate, running, ready)
  local set = store .. ':line:' .. gate.name
  local next_blocked, chosen, at, blocked = walk(set), {}, 1, nil
  local going, least = #running, least_limit(running)
  local function read_on()
    blocked = nil
    for member in next_blocked do
      blocked = who_has(member)
      if blocked then
        return
      end
      drop_ghost_at(gate, set, member)
    end
  end
  read_on()
  while true do
    local job = ready[at]
    local is_ready = job and (not blocked or turn(job) < turn(blocked))
    job = is_ready and job or blocked
    least = job and math.min(least, limit_of(job))
    if not job or going >= least then
      return chosen, job
    end
    chosen[#chosen + 1], going = job, going + 1
    if is_ready then
      at = at + 1
    else
      read_on()
    end
  end
end

-- Somebody waits behind a ready job: it has so long to be taken. Who mends makes none that led to nothing once more.
local function offer(gate, is_offered, is_new)
  if not is_offered then
    gate.offer_ends = nil
  elseif is_new or not (gate.offer_ends or gate.is_mended) then
    gate.offer_ends = now + PATIENCE
  end
end

-- As many of the running, oldest start first, as it takes for this one to fit once they have gone, and those who
-- are ready have started; but nobody who goes before it: a newer job that pre-empts.
local function preempt(first, running, ready)
  local staying = {unpack(ready)}
  for _, job in ipairs(running) do
    if not job.cancel_reason then
      staying[#staying + 1] = job
    end
  end
  local at = #ready + 1
  while staying[at] and not fits(limit_of(first), staying) do
    if tonumber(staying[at].position) > tonumber(first.position) then
      local job = table.remove(staying, at)
      change(job, 'cancel_reason', '!pre-empted by ' .. first.id)
      wake(STOP_HINT .. job.worker)
    else
      at = at + 1
    end
  end
end

local function open_slot(gate)
  local running, ready = going_in(gate)
  local chosen, first = choose(gate, running, ready)
  local goes, started = {}, false
  for _, job in ipairs(chosen) do
    goes[job] = true
  end
  for _, job in ipairs(ready) do
    if not goes[job] then
      move(job, 'blocked')
    end
  end
  for _, job in ipairs(chosen) do
    if job.state == 'blocked' then
      started = true
      move(job, 'ready')
    end
  end
  offer(gate, #chosen > 0 and first, started)
  if first and tonumber(first.position) < 0 then
    preempt(first, running, chosen)
  end
end

local function open_gates()
  for _, gate in ipairs(touched) do
    gate.is_touched, gate.is_changed = false, true
    local head = first_in(gate, members_key(gate))
    if gate.sort == 'train' then
      open_train(gate, head)
    else
      open_slot(gate)
    end
    gate.is_empty = not head and not gate.held_by and not gate.has_ghosts
  end
  touched = {}
end

-- The last one leaves no trace.
local function save_gates()
  open_gates()
  for _, job in ipairs(let_through) do
    if not job.is_claimed then
      wake(job.queue)
    end
  end
  for key, gate in pairs(gates) do
    if gate.is_changed then
      local is_there = not gate.is_empty
      place(store .. ':gates', key, is_there and 0)
      if is_there then
        will('HSET', store .. ':gate:' .. key, 'last_position', text(gate.last_position), 'held_by', gate.held_by or '')
      else
        will('DEL', store .. ':gate:' .. key)
      end
      if gate.sort == 'train' then
        place(store .. ':held', gate.name, gate.held_by and 0 or false)
      else
        place(store .. ':offers', gate.name, gate.offer_ends and text(gate.offer_ends) or false)
      end
    end
  end
end
