-- uses: at_gates places moves forget turns steps
-- Look at the gates after this one, and heal those that do not fit their jobs. Before them come the jobs that wait
-- for others, one by one: those may be gone. After them come the jobs that are blocked, one by one: their gate, or
-- their place there, may be gone.

local function mend_waiting(after)
  local answers = {}
  for _, id in ipairs(redis.call('ZRANGEBYLEX', store .. ':waiting', after, '+', 'LIMIT', 0, given.limit)) do
    if not steps().has_budget() then
      break
    end
    steps().mend(id)
    answers[#answers + 1] = {'pipeline', id}
  end
  return answers
end

local function mend_gates(is_gate)
  local after = is_gate and '(' .. given.after_sort .. ':' .. given.after_name or '-'
  local keys = redis.call('ZRANGEBYLEX', store .. ':gates', after, '+', 'LIMIT', 0, given.limit)
  local answers = {}
  for i, key in ipairs(keys) do
    local gate = turns().gate_named(key)
    local holder = gate.held_by and load(gate.held_by)
    if gate.held_by and not (holder and ENDED[holder.state]) then
      drop_ghost(store .. ':kept', gate.held_by)
      gate.held_by = nil
    end
    gate.is_mended = true
    turns().touch(gate)
    answers[i] = {gate.sort, gate.name}
  end
  return answers
end

-- What lists those at a gate was deleted: the jobs still know their places. Who was let through comes back, too.
local function put_up(gate)
  if gate.is_put_up then
    return
  end
  gate.is_put_up = true
  for _, id in ipairs(redis.call('ZRANGE', store .. ':gated:' .. gate.key, 0, -1)) do
    local job = load(id)
    if job and job.position and not ENDED[job.state] then
      turns().take_place(job, job.state)
      gate.last_position = math.max(gate.last_position, math.abs(job.position))
    end
  end
  turns().touch(gate)
end

-- Those of a line, then of the next: the name says which, and after which of them to go on.
local function mend_places(after)
  local first, last = string.match(after, '^(.*)\n(.*)$')
  local lines, answers = redis.call('SMEMBERS', store .. ':lines'), {}
  table.sort(lines)
  for _, line in ipairs(lines) do
    if #answers < given.limit and (not first or line >= first) then
      local start = line == first and '(' .. last or '-'
      local most = given.limit - #answers
      for _, id in ipairs(redis.call('ZRANGEBYLEX', ids_key('blocked', line), start, '+', 'LIMIT', 0, most)) do
        local job = load(id)
        if job and job.position and not turns().has_place(job) then
          put_up(turns().gate_of(job))
        end
        answers[#answers + 1] = {'job', line .. '\n' .. id}
      end
    end
  end
  return answers
end

local function answer_mend()
  local sort = some(given.after_sort)
  if not sort or sort == 'pipeline' then
    local answers = mend_waiting(sort and '(' .. given.after_name or '-')
    if #answers > 0 then
      return answers
    end
  end
  if sort ~= 'job' then
    local answers = mend_gates(sort and sort ~= 'pipeline')
    if #answers > 0 then
      return answers
    end
  end
  return mend_places(sort == 'job' and given.after_name or '')
end
