-- uses: states gates
-- Make due jobs ready, and end offers of slots that no worker took.

local function stage_due()
  local due = redis.call('ZRANGEBYSCORE', store .. ':scheduled', '-inf', now, 'LIMIT', 0, given.limit)
  for _, id in ipairs(due) do
    local job = load(id)
    if job then
      wait_again(job, 'ready')
    else
      put(store .. ':scheduled', id, false)
    end
  end
  follow_up()
  return due
end

local function first_blocked(gate)
  local blocked = {}
  for job in gates().blocked_in(gate) do
    blocked[#blocked + 1] = job
    if #blocked == MOST_COMPARED then
      break
    end
  end
  return blocked
end

local function gives_way(job, blocked)
  local others = gather(blocked, function(other) return pair_of(other) ~= pair_of(job) end)
  return #others > 0 or #blocked == MOST_COMPARED
end

-- A ready job that gives way goes behind all jobs that had no offer yet.
local function end_offer(gate)
  local _, ready = gates().going_in(gate)
  local blocked = first_blocked(gate)
  gate.offer_ends = nil
  put(store .. ':offers', gate.name, false)
  for _, job in ipairs(ready) do
    if gives_way(job, blocked) then
      leave(job)
      change(job, 'position', gates().next_position(gate))
      enter(job, 'ready')
      gates().touch(gate)
    end
  end
end

local function answer_stage()
  local due = stage_due()
  local over = redis.call('ZRANGEBYSCORE', store .. ':offers', '-inf', now, 'LIMIT', 0, given.limit)
  for _, name in ipairs(over) do
    local gate = gates().gate_named('slot:' .. name)
    if gate.offer_ends and gate.offer_ends <= now then
      end_offer(gate)
    end
  end
  return due
end
