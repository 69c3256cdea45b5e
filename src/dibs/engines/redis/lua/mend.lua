-- uses: at_gates places moves forget turns steps
-- Look at the gates after this one, and heal those that do not fit their jobs. Before them come the jobs that wait
-- for others, one by one: those may be gone.

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
    turns().touch(gate)
    answers[i] = {gate.sort, gate.name}
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
  return mend_gates(sort and sort ~= 'pipeline')
end
