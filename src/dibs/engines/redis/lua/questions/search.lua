-- uses: reading matching
-- The ids of a page of jobs that match, each with its place and whether its texts hold what is looked for.

-- {id after which the next page begins or '', how many matched, the last of them, {id, place}, …}
local function answer_search()
  return matching.search(some(given.scan), given.limit)
end
