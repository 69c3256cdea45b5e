-- Jobs that left for another store and have not landed there.

local function answer_departed()
  local rows = {}
  local flat = redis.call('HGETALL', store .. ':departed')
  for i = 1, #flat, 2 do
    local noted = cjson.decode(flat[i + 1])
    rows[#rows + 1] = {flat[i], noted[1], noted[2]}
  end
  return rows
end
