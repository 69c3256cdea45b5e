-- uses: at_gates places moves turns
-- Make due jobs ready, and pass on turns at slots that nobody took.

local function stage_due()
  local due = redis.call('ZRANGEBYSCORE', store .. ':scheduled', '-inf', now, 'LIMIT', 0, given.limit)
  for _, id in ipairs(due) do
    local job = load(id)
    if job then
      wait_again(job, 'ready')
    else
      drop_ghost(store .. ':scheduled', id)
    end
  end
  if turns_read then
    turns_read.open_gates()
  end
  return due
end

local function gives_way(job, waiting)
  for _, other in ipairs(waiting) do
    if line_of(other) ~= line_of(job) then
      return true
    end
  end
  return #waiting == LOOKED_AT
end

-- Who is ready and gives way (jobs/gates.py) goes behind all who had no turn yet.
local function pass_on(gate)
  local _, ready = turns().going_in(gate)
  local waiting = turns().first_in_line(gate, LOOKED_AT)
  gate.offer_ends = nil
  place(store .. ':offers', gate.name, false)
  for _, job in ipairs(ready) do
    if gives_way(job, waiting) then
      leave(job)
      change(job, 'position', turns().next_position(gate))
      enter(job, 'ready')
      turns().touch(gate)
    end
  end
end

local function answer_stage()
  local due = stage_due()
  local over = redis.call('ZRANGEBYSCORE', store .. ':offers', '-inf', now, 'LIMIT', 0, given.limit)
  for _, name in ipairs(over) do
    local gate = turns().gate_named('slot:' .. name)
    if gate.offer_ends and gate.offer_ends <= now then
      pass_on(gate)
    end
  end
  return due
end
