-- uses: reading
-- These jobs, whatever their state.

local function answer_get()
  return gather(given.ids, function(id)
    local _, flat = load_whole(id)
    return flat
  end)
end
