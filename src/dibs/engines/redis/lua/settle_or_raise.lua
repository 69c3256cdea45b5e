-- uses: at_gates places moves turns steps enqueue settle
-- Settle in the caller's own EXEC: who reads its replies must see that a claim was lost.

local function answer_settle_or_raise()
  local applied = answer_settle()
  if #applied < #given.settlements then
    return redis.error_reply('LEASELOST a claim settled in this pipeline no longer held its job')
  end
  return applied
end
