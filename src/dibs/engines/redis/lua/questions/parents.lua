-- The parents of these jobs, in the order given, and whether each has succeeded.

local function answer_parents()
  local rows = {}
  for _, id in ipairs(given.jobs) do
    local flat, found = redis.call('ZRANGE', store .. ':parents:' .. id, 0, -1, 'WITHSCORES'), {}
    for i = 1, #flat, 2 do
      if string.byte(flat[i], 15) ~= 56 then -- else the pipeline itself, of which not all is stored yet
        found[#found + 1] = {flat[i], tonumber(flat[i + 1])}
      end
    end
    table.sort(found, function(one, other) return math.abs(one[2]) < math.abs(other[2]) end)
    for _, parent in ipairs(found) do
      rows[#rows + 1] = {id, parent[1], parent[2] < 0 and 1 or 0}
    end
  end
  return rows
end
