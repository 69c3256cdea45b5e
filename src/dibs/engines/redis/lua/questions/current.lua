-- uses: states gates
-- The job of each of these slots that started last, finished or not.

local PIECE = 20

-- Of the jobs that no longer run; entries of jobs that were deleted by hand are skipped.
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
  return gather(given.slots, function(slot)
    local id, token = last_started(slot)
    local running = gates().going_in(gates().gate_named('slot:' .. slot))
    local last = running[#running]
    if last and tonumber(last.token) > token then
      id, token = last.id, tonumber(last.token)
    end
    return id and {slot, id, text(token)}
  end)
end
