-- uses: states gates
-- These trains or slots and their jobs: by name, or all of a sort, or the held trains.

local function page_of(set, start)
  local after = some(given.after) and '(' .. start .. given.after or '[' .. start
  return redis.call('ZRANGEBYLEX', set, after, '(' .. start .. '\255', 'LIMIT', 0, given.limit)
end

local function wanted_keys()
  if some(given.names) then
    return gather(given.names, function(name)
      local key = given.sort .. ':' .. name
      return redis.call('ZSCORE', store .. ':gates', key) and key
    end)
  end
  if given.held then
    return gather(page_of(store .. ':held', ''), function(name) return 'train:' .. name end)
  end
  return page_of(store .. ':gates', given.sort .. ':')
end

-- The head of a train; of a slot the job that started last, else the ready one, else the next.
local function foremost(gate)
  if gate.sort == 'train' then
    return gates().head_of(gate)
  end
  local running, ready = gates().going_in(gate)
  return running[#running] or ready[1] or gates().blocked_in(gate)()
end

local function running_in(gate)
  return gate.sort == 'slot' and #gates().going_in(gate) or 0
end

local function answer_gates()
  return gather(wanted_keys(), function(key)
    local gate = gates().gate_named(key)
    local is_held = gate.held_by and 1 or 0
    local job = not gate.held_by and foremost(gate)
    local length = redis.call('ZCARD', gates().members_key(gate)) + is_held
    return {gate.name, gate.held_by or job and job.id or '', length, is_held, running_in(gate)}
  end)
end
