-- uses: states gates pipelines enqueue settle
-- Settle in the caller's own EXEC: a lost claim is an error among its replies.

local function answer_settle_or_raise()
  local applied = answer_settle()
  if #applied < #given.settlements then
    return redis.error_reply('LEASELOST a claim settled in this pipeline no longer held its job')
  end
  return applied
end
