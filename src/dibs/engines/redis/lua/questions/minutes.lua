-- The counts of some minutes, or quarters of an hour, as they are stored: {minute, fields and values} each.

local function answer_minutes()
  local found = {}
  for minute = given.first, given.last - 1, given.width do
    local flat = redis.call('HGETALL', store .. ':minutes:' .. given.width .. ':' .. text(minute))
    if flat[1] then
      found[#found + 1] = {minute, flat}
    end
  end
  return found
end
