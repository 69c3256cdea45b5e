-- uses: states gates arrive
-- Make departed jobs jobs of this store again; one stays departed if its unique key was taken since.

local function answer_give_back()
  local rows = take_in_all(false)
  for i, one in ipairs(given.jobs) do
    if rows[i] == '' or rows[i] == one[1] then
      will('HDEL', store .. ':departed', one[1])
    end
  end
  return rows
end
