-- uses: renew
-- Store the progress of a claim.

local function answer_progress()
  local job = held(given.job, given.token)
  if not job then
    return {}
  end
  change(job, 'progress', given.fraction)
  if some(given.message) then
    change(job, 'message', given.message)
  end
  return {claim_row(job)}
end
