-- The store's clock.

local function answer_now()
  return text(now)
end
