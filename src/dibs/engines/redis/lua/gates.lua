-- uses: at_gates places moves turns
-- Who is at these trains or slots: by name, or all of a sort, or the held trains.

local function keys_after(set, start)
  local after = some(given.after) and '(' .. start .. given.after or '[' .. start
  return redis.call('ZRANGEBYLEX', set, after, '(' .. start .. '\255', 'LIMIT', 0, given.limit)
end

local function wanted_gates()
  local found = {}
  local function add(key)
    found[#found + 1] = turns().gate_named(key)
  end
  if some(given.names) then
    for _, name in ipairs(given.names) do
      if redis.call('ZSCORE', store .. ':gates', given.sort .. ':' .. name) then
        add(given.sort .. ':' .. name)
      end
    end
  elseif given.held then
    for _, name in ipairs(keys_after(store .. ':held', '')) do
      add('train:' .. name)
    end
  else
    for _, key in ipairs(keys_after(store .. ':gates', given.sort .. ':')) do
      add(key)
    end
  end
  return found
end

-- A train's first; of a slot who started last, else who is ready, else who is next.
local function who_goes(gate)
  if gate.sort == 'train' then
    return turns().first_in(gate, turns().members_key(gate))
  end
  local running, ready = turns().going_in(gate)
  return running[#running] or ready[1] or turns().first_in(gate, store .. ':line:' .. gate.name)
end

local function answer_gates()
  local answers = {}
  for _, gate in ipairs(wanted_gates()) do
    local is_held = gate.held_by and 1 or 0
    local goes = not gate.held_by and who_goes(gate)
    local length = redis.call('ZCARD', turns().members_key(gate)) + is_held
    answers[#answers + 1] = {gate.name, gate.held_by or goes and goes.id or '', length, is_held}
  end
  return answers
end
