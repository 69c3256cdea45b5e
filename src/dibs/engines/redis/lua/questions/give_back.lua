-- uses: states gates arrive
-- Make departed jobs jobs of this store again; one whose unique key was taken since stays departed.

local function answer_give_back()
  local answers = take_in_all(false)
  for i, one in ipairs(given.jobs) do
    if answers[i] == '' or answers[i] == one[1] then
      will('HDEL', store .. ':departed', one[1])
    end
  end
  return answers
end
