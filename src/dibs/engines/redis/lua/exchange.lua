-- uses: limits due at_gates places moves turns steps enqueue settle claim
-- Settle, and claim, in one step.

local function answer_exchange()
  local applied = answer_settle()
  return {applied, unpack(answer_claim())}
end
