-- uses: reading matching
-- One page of the ids of jobs that match, oldest first, and where the next one begins.

local function answer_find_oldest()
  return matching.find(false, function(id) return id end)
end
