-- uses: gate opening
-- What jobs do at trains and slots: join, wait, end, give way. With the files that it uses this is one module, a
-- table that states.lua reads when the first job at a gate is met.

-- Columns of a new job, as enqueue.lua numbers them; stored where they differ from the default.
local ID, TRAIN, SLOT, SLOT_POLICY, SLOT_LIMIT = 1, 16, 17, 18, 19
local USUAL = {{TRAIN, 'train'}, {SLOT, 'slot'}, {SLOT_POLICY, 'slot_policy', 'wait'}, {SLOT_LIMIT, 'slot_limit', 1}}

-- The state in which a job waits that would be in this one without its gate.
local function waits_as(job, state)
  if job.slot then
    touch(gate_of(job))
    return state_by_time(job.run_at) == 'ready' and 'blocked' or 'scheduled'
  end
  -- A head stays the head, so its gate need not be opened; a job behind it stays blocked.
  return job.state == 'blocked' and 'blocked' or state
end

local function is_first(gate, job)
  local head = head_of(gate)
  return not head or member_of(job) < member_of(head)
end

-- The job is no longer a member: open the gate, or hold the train.
local function end_at_gate(job, state)
  local gate = gate_of(job)
  local policy = state == 'cancelled' and job.on_cancelled or state == 'failed' and job.on_failed
  touch(gate)
  if job.train and policy == 'hold' and not gate.held_by and is_first(gate, job) then
    gate.held_by, job.holds_train = job.id, true
  end
end

-- The job that held a train was deleted, released or retried.
local function release(gate)
  local job = load(gate.held_by)
  if job and ENDED[job.state] then
    put(store .. ':kept', job.id, job.unique_until or text(now))
  end
  gate.held_by = nil
  touch(gate)
end

-- Give a job its position: the end of its train; at a slot 0, or before all others. Returns the state in which it
-- waits there.
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

-- A deleted job holds its train no longer.
local function forget_at_gate(job)
  local gate = gate_of(job)
  if gate.held_by == job.id then
    release(gate)
  elseif not ENDED[job.state] then
    touch(gate)
  end
  put(store .. ':gated:' .. gate.key, job.id, false)
  if job.slot then
    put(store .. ':started:' .. job.slot, job.id, false)
  end
end

-- -- Policies of slots ---------------------------------------------------------------------------

-- For the policy `drop`: the job that is there instead of a new one if the slot is full, a running one or the first.
local function job_instead(slot, limit)
  local gate, jobs, first = gate_named('slot:' .. slot), 0, nil
  for job in jobs_in(gate, members_key(gate)) do
    first, jobs, limit = first or job, jobs + 1, math.min(limit, limit_of(job))
    if jobs >= limit then
      local running = going_in(gate)
      table.sort(running, function(one, other) return member_of(one) < member_of(other) end)
      return running[1] or first
    end
  end
  return nil
end

-- For the policy `replace`: end all jobs of the slot that wait.
local function supersede(slot, id)
  local gate, waiting = gate_named('slot:' .. slot), {}
  for job in jobs_in(gate, members_key(gate)) do
    if job.state ~= 'running' then
      waiting[#waiting + 1] = job
    end
  end
  for _, job in ipairs(waiting) do
    finish(job, 'cancelled', 'superseded by ' .. id)
  end
end

-- Returns the job that is kept instead of the new one, if there is one.
local function apply_slot_policy(new)
  if new[SLOT_POLICY] == 'drop' then
    return job_instead(new[SLOT], new[SLOT_LIMIT])
  end
  if new[SLOT_POLICY] == 'replace' then
    supersede(new[SLOT], new[ID])
  end
  return nil
end

-- -- Enqueue and move ----------------------------------------------------------------------------

-- Write the gate at which a job waits, or will wait after its parents have succeeded.
local function name_gate(job, new)
  change_unusual(job, new, USUAL)
  put(store .. ':gated:' .. gate_key(job), job.id, 0)
end

local function join_new(job, new)
  name_gate(job, new)
  job.state = 'blocked'
  change(job, 'state', join(job, new[SLOT_POLICY]))
end

local function is_taken(gate, position)
  local from = string.format('[%013d', position + 1000000000000)
  local to = string.format('(%013d', position + 1000000000001)
  return #redis.call('ZRANGEBYLEX', members_key(gate), from, to, 'LIMIT', 0, 1) > 0
end

-- Whether a position is taken, the running head would be behind one of these jobs, or the train is held.
local function clash(gate, jobs)
  local head = head_of(gate)
  if gate.held_by or head and head.state == 'running' and tonumber(head.position) >= jobs[1].position then
    return true
  end
  return gather(jobs, function(job) return is_taken(gate, job.position) end)[1]
end

-- Jobs that a move brings to a train keep their positions there, or all of them go to its end.
local function find_positions(train, jobs, positions)
  local gate = gate_named('train:' .. train)
  table.sort(jobs, function(one, other) return one.position < other.position end)
  if clash(gate, jobs) then
    for nth, job in ipairs(jobs) do
      positions[job.id] = gate.last_position + nth
    end
  end
end

-- A job that a move brings has its position already, perhaps before the jobs that are here.
local function arrive(job)
  local gate = gate_of(job)
  put(store .. ':gated:' .. gate.key, job.id, 0)
  if job.slot and job.token then
    put(store .. ':started:' .. job.slot, job.id, job.token)
  end
  if ENDED[job.state] then
    return
  end
  local head = job.train and head_of(gate)
  if head and (head.state == 'ready' or head.state == 'scheduled') then
    change_state(head, 'blocked')
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

-- A waiting job gets the arguments and the time of a new one with its key; a running or finished one is kept.
local function replace(job, args, run_at)
  if job.state ~= 'running' and not ENDED[job.state] then
    change(job, 'args', args)
    wait_again(job, state_by_time(run_at), run_at)
    wake(job.queue)
  end
end

return {
  list_at_gate = list_at_gate, is_listed = is_listed, kept_until = kept_until,
  gate_named = gate_named, gate_of = gate_of, members_key = members_key, next_position = next_position, touch = touch,
  head_of = head_of, going_in = going_in, blocked_in = blocked_in, fits = fits, limit_of = limit_of,
  name_gate = name_gate, join_new = join_new, join = join, waits_as = waits_as, end_at_gate = end_at_gate,
  release = release, forget = forget_at_gate, apply_slot_policy = apply_slot_policy, supersede = supersede,
  replace = replace, arrive = arrive, find_positions = find_positions, open_gates = open_gates, save_gates = save_gates,
}
