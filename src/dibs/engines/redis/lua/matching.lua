-- Which jobs a filter means, and where their ids are.

local function sources()
  if some(given.pipeline_id) then
    return {store .. ':pipeline:' .. given.pipeline_id}
  end
  for _, sort in ipairs({'train', 'slot'}) do
    if some(given[sort]) then
      return {store .. ':gated:' .. sort .. ':' .. given[sort]}
    end
  end
  local found = {}
  for _, line in ipairs(redis.call('SMEMBERS', store .. ':lines')) do
    local queue, kind = string.match(line, '^(.-)\n(.*)$')
    if (not some(given.queue) or given.queue == queue) and (not some(given.kind) or given.kind == kind) then
      for _, state in ipairs(some(given.states) or STATES) do
        found[#found + 1] = ids_key(state, line)
      end
    end
  end
  return found
end

local function has_tags(job)
  if #given.tags == 0 then
    return true
  end
  local own = names(cjson.decode(job.tags or '[]'))
  for _, tag in ipairs(given.tags) do
    if not own[tag] then
      return false
    end
  end
  return true
end

local function matches(job)
  for _, name in ipairs({'queue', 'kind', 'train', 'slot', 'pipeline_id'}) do
    if some(given[name]) and given[name] ~= job[name] then
      return false
    end
  end
  local states = some(given.states)
  return (not states or names(states)[job.state]) and has_tags(job)
end
