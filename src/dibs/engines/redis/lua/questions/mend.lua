-- uses: states gates pipelines
-- Repair what was deleted by hand, a page at a time: first jobs that wait for parents, which may be gone; then gates
-- that do not fit their jobs; then blocked jobs, with a gate or an entry there that may be gone.

local function mend_waiting(after)
  local ids = redis.call('ZRANGEBYLEX', store .. ':waiting', after, '+', 'LIMIT', 0, given.limit)
  return gather(ids, function(id)
    if pipelines().has_budget() then
      pipelines().mend(id)
      return {'pipeline', id}
    end
  end)
end

local function mend_gates(is_gate)
  local after = is_gate and '(' .. given.after_sort .. ':' .. given.after_name or '-'
  local keys = redis.call('ZRANGEBYLEX', store .. ':gates', after, '+', 'LIMIT', 0, given.limit)
  return gather(keys, function(key)
    local gate = gates().gate_named(key)
    local holder = gate.held_by and load(gate.held_by)
    if gate.held_by and not (holder and ENDED[holder.state]) then
      put(store .. ':kept', gate.held_by, false)
      gate.held_by = nil
    end
    gate.is_mended = true
    gates().touch(gate)
    return {gate.sort, gate.name}
  end)
end

-- The sets of a gate were deleted: its jobs still know their positions. Jobs that were let through are listed, too.
local function list_again(gate)
  if gate.is_listed_again then
    return
  end
  gate.is_listed_again = true
  for _, id in ipairs(redis.call('ZRANGE', store .. ':gated:' .. gate.key, 0, -1)) do
    local job = load(id)
    if job and job.position and not ENDED[job.state] then
      gates().list_at_gate(job, job.state, true)
      gate.last_position = math.max(gate.last_position, math.abs(job.position))
    end
  end
  gates().touch(gate)
end

-- The blocked jobs of one queue-kind pair after the other; the name in a row is the pair and the id.
local function mend_blocked(after)
  local first, last = string.match(after, '^(.*)\n(.*)$')
  local pairs_with_jobs, rows = redis.call('SMEMBERS', store .. ':lines'), {}
  table.sort(pairs_with_jobs)
  for _, pair in ipairs(pairs_with_jobs) do
    if #rows < given.limit and (not first or pair >= first) then
      local start = pair == first and '(' .. last or '-'
      local most = given.limit - #rows
      for _, id in ipairs(redis.call('ZRANGEBYLEX', ids_key('blocked', pair), start, '+', 'LIMIT', 0, most)) do
        local job = load(id)
        if job and job.position and not gates().is_listed(job) then
          list_again(gates().gate_of(job))
        end
        rows[#rows + 1] = {'job', pair .. '\n' .. id}
      end
    end
  end
  return rows
end

local function answer_mend()
  local sort, rows = some(given.after_sort), {}
  if not sort or sort == 'pipeline' then
    rows = mend_waiting(sort and '(' .. given.after_name or '-')
  end
  if #rows == 0 and sort ~= 'job' then
    rows = mend_gates(sort and sort ~= 'pipeline')
  end
  return #rows > 0 and rows or mend_blocked(sort == 'job' and given.after_name or '')
end
