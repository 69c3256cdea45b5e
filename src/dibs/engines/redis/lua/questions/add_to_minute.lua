-- Add counts of ended attempts to the ones of a minute or a quarter of an hour.

local function answer_add_to_minute()
  local key = store .. ':minutes:' .. given.width .. ':' .. given.at_minute
  for _, pair in ipairs(given.counts) do
    will('HINCRBY', key, given.queue .. '\n' .. given.kind .. '\n' .. pair[1], pair[2])
  end
  will('EXPIRE', key, given.seconds)
  return {}
end
