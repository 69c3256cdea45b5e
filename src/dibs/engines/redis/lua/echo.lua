-- Say this to all who listen.

local function answer_echo()
  wake(given.hint)
  return given.hint
end
