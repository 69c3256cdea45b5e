-- Decides which jobs of trains and slots may go: the rules of ADR 12, spelled out in jobs/gates.py.
--
-- A change at a gate only touches it. `open_gates` then lets the jobs through that may go; `save_gates` collects what
-- is left to write.

local function change_state(job, state)
  leave(job)
  change(job, 'state', state)
  enter(job, state)
  if state == 'ready' and not job.is_new then
    let_through[#let_through + 1] = job
  end
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
    change_state(head, state_by_time(head.run_at))
  end
end

-- The jobs that a slot let through: the running ones by their start, the ready ones by the order of the gate.
local function going_in(gate)
  local running, ready = {}, {}
  for job in jobs_in(gate, store .. ':going:' .. gate.name) do
    local list = job.state == 'running' and running or ready
    list[#list + 1] = job
  end
  table.sort(running, function(one, other) return tonumber(one.token) < tonumber(other.token) end)
  return running, ready
end

local function blocked_in(gate)
  return jobs_in(gate, store .. ':line:' .. gate.name)
end

-- Of the blocked and the ready jobs, the ones that go beside the running, and the first that does not.
local function choose(gate, running, ready)
  local next_blocked, chosen, at = blocked_in(gate), {}, 1
  local going, least = #running, least_limit(running)
  local blocked = next_blocked()
  while true do
    local job = ready[at]
    local is_ready = job and (not blocked or member_of(job) < member_of(blocked))
    job = is_ready and job or blocked
    least = job and math.min(least, limit_of(job))
    if not job or going >= least then
      return chosen, job
    end
    chosen[#chosen + 1], going = job, going + 1
    if is_ready then
      at = at + 1
    else
      blocked = next_blocked()
    end
  end
end

-- Start an offer when a job is ready and another waits behind it. `mend` starts none: the last one led to nothing.
local function offer(gate, is_offered, is_new)
  if not is_offered then
    gate.offer_ends = nil
  elseif is_new or not (gate.offer_ends or gate.is_mended) then
    gate.offer_ends = now + OFFER
  end
end

-- Ask running jobs to stop, oldest start first, until this job would fit after they have gone and the ready ones
-- have started; but none that goes before it: a newer job that pre-empts.
local function preempt(first, running, ready)
  local staying = {unpack(ready)}
  append(staying, gather(running, function(job) return not job.cancel_reason and job end))
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
  local goes, started = names(chosen), false
  for _, job in ipairs(ready) do
    if not goes[job] then
      change_state(job, 'blocked')
    end
  end
  for _, job in ipairs(chosen) do
    if job.state == 'blocked' then
      started = true
      change_state(job, 'ready')
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
    local head = head_of(gate)
    if gate.sort == 'train' then
      open_train(gate, head)
    else
      open_slot(gate)
    end
    gate.is_empty = not head and not gate.held_by and not gate.has_ghosts
  end
  touched = {}
end

-- A gate without jobs is removed.
local function save_gates()
  open_gates()
  wake_let_through()
  for key, gate in pairs(known_gates) do
    if gate.is_changed then
      put(store .. ':gates', key, not gate.is_empty and 0)
      if gate.is_empty then
        will('DEL', store .. ':gate:' .. key)
      else
        will('HSET', store .. ':gate:' .. key, 'last_position', text(gate.last_position), 'held_by', gate.held_by or '')
      end
      if gate.sort == 'train' then
        put(store .. ':held', gate.name, gate.held_by and 0 or false)
      else
        put(store .. ':offers', gate.name, gate.offer_ends and text(gate.offer_ends) or false)
      end
    end
  end
end
