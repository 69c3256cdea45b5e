-- uses: at_gates places moves turns
-- Who of each of these slots started last, finished or not.

local PIECE = 20

-- Of those that no longer run; what is left of one that somebody deleted by hand is passed over.
local function last_started(slot)
  local first = 0
  while true do
    local flat = redis.call('ZREVRANGE', store .. ':started:' .. slot, first, first + PIECE - 1, 'WITHSCORES')
    for i = 1, #flat, 2 do
      if exists(flat[i]) then
        return flat[i], tonumber(flat[i + 1])
      end
    end
    if #flat < 2 * PIECE then
      return nil, 0
    end
    first = first + PIECE
  end
end

local function answer_current()
  local answers = {}
  for _, slot in ipairs(given.slots) do
    local id, token = last_started(slot)
    local running = turns().going_in(turns().gate_named('slot:' .. slot))
    local last = running[#running]
    if last and tonumber(last.token) > token then
      id, token = last.id, tonumber(last.token)
    end
    if id then
      answers[#answers + 1] = {slot, id, text(token)}
    end
  end
  return answers
end
