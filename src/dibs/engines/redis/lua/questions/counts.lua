-- uses: reading
-- How many jobs there are in each state: of one queue, or of all.

local function answer_counts()
  local found, rows = {}, {}
  for _, set in ipairs(id_sets(STATES, some(given.queue))) do
    local key, state = unpack(set)
    found[state] = (found[state] or 0) + redis.call('ZCARD', key)
  end
  for state, jobs in pairs(found) do
    rows[#rows + 1] = {state, jobs}
  end
  return rows
end
