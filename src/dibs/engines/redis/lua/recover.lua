-- uses: at_gates places moves turns
-- Take a running job from its holder, whose lease has been over for long.

local function answer_recover()
  local job = held(given.job, given.token)
  if not job or job.lease_until + given.stale_after > now then
    return {}
  end
  back(job, 'ready')
  change(job, 'attempts', 0, 'cancel_reason', '', 'errors', given.errors)
  wake('')
  return {job.id}
end
