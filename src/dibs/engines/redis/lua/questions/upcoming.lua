-- uses: upkeep
-- What is due, now and next.

local function answer_upcoming()
  return upkeep.upcoming()
end
