-- uses: states gates pipelines
-- Repair what was deleted by hand, a page at a time: first jobs that wait for parents, which may be gone; then gates that
-- do not fit their jobs; then blocked jobs whose gate, or whose entry there, may be gone.

local function mend_waiting(after)
  local answers = {}
  for _, id in ipairs(redis.call('ZRANGEBYLEX', store .. ':waiting', after, '+', 'LIMIT', 0, given.limit)) do
    if not pipelines().has_budget() then
      break
    end
    pipelines().mend(id)
    answers[#answers + 1] = {'pipeline', id}
  end
  return answers
end

local function mend_gates(is_gate)
  local after = is_gate and '(' .. given.after_sort .. ':' .. given.after_name or '-'
  local keys = redis.call('ZRANGEBYLEX', store .. ':gates', after, '+', 'LIMIT', 0, given.limit)
  local answers = {}
  for i, key in ipairs(keys) do
    local gate = gates().gate_named(key)
    local holder = gate.held_by and load(gate.held_by)
    if gate.held_by and not (holder and ENDED[holder.state]) then
      put(store .. ':kept', gate.held_by, false)
      gate.held_by = nil
    end
    gate.is_mended = true
    gates().touch(gate)
    answers[i] = {gate.sort, gate.name}
  end
  return answers
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

-- The blocked jobs of one queue-kind pair after the other; the name of an answer is the pair and the id.
local function mend_blocked(after)
  local first, last = string.match(after, '^(.*)\n(.*)$')
  local pairs_with_jobs, answers = redis.call('SMEMBERS', store .. ':lines'), {}
  table.sort(pairs_with_jobs)
  for _, pair in ipairs(pairs_with_jobs) do
    if #answers < given.limit and (not first or pair >= first) then
      local start = pair == first and '(' .. last or '-'
      local most = given.limit - #answers
      for _, id in ipairs(redis.call('ZRANGEBYLEX', ids_key('blocked', pair), start, '+', 'LIMIT', 0, most)) do
        local job = load(id)
        if job and job.position and not gates().is_listed(job) then
          list_again(gates().gate_of(job))
        end
        answers[#answers + 1] = {'job', pair .. '\n' .. id}
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
  return mend_blocked(sort == 'job' and given.after_name or '')
end
