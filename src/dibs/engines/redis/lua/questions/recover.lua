-- uses: states gates
-- Take a running job back after its lease ran out long ago.

local function answer_recover()
  local job = held(given.job, given.token)
  if not job or job.lease_until + given.stale_after > now then
    return {}
  end
  back_without_holder(job, 'ready')
  change(job, 'attempts', 0, 'progress', 0, 'message', '', 'cancel_reason', '', 'errors', given.errors)
  wake('')
  return {job.id}
end
