-- uses: limits upkeep states gates pipelines enqueue settle claim
-- Settle, and claim, in one script.

local function answer_exchange()
  local applied = answer_settle()
  return {applied, unpack(answer_claim())}
end
