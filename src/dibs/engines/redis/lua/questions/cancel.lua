-- uses: states gates pipelines
-- End waiting jobs, ask running ones to stop.

local function answer_cancel()
  return gather(given.ids, function(id)
    local job = load(id)
    if not job or ENDED[job.state] then
      return nil
    end
    if job.state == 'running' then
      change(job, 'cancel_reason', '!' .. (some(given.reason) or ''))
      wake(STOP_HINT .. job.worker)
      return {id, job.worker}
    end
    finish(job, 'cancelled', some(given.reason))
    return {id, ''}
  end)
end
