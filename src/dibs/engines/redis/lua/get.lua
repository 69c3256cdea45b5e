-- uses: whole_jobs
-- These jobs, whatever their state.

local function answer_get()
  local flats = {}
  for _, id in ipairs(given.ids) do
    local job, flat = load_whole(id)
    flats[#flats + 1] = flat
  end
  return flats
end
