-- uses: reading matching
-- How many jobs of a page match; without a page, of all, where the sizes of the sets say it.

-- {id after which the next page begins or '', the number}
local function answer_count()
  if not matching.is_by_sets() then
    local page = matching.search(given.scan, 0)
    return {page[1], page[2]}
  end
  local number = 0
  for _, set in ipairs(matching.sets()) do
    number = number + redis.call('ZCARD', set)
  end
  return {'', number}
end
