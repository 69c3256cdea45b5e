-- uses: at_gates places moves turns
-- Look at the gates after this one, and heal those that do not fit their jobs.

local function answer_mend()
  local after = some(given.after_sort) and '(' .. given.after_sort .. ':' .. given.after_name or '-'
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
