-- uses: at_gates places moves turns steps
-- End waiting jobs, ask running ones to stop.

local function answer_cancel()
  local changed = {}
  for _, id in ipairs(given.ids) do
    local job = load(id)
    if job and not ENDED[job.state] then
      if job.state == 'running' then
        changed[#changed + 1] = {id, job.worker}
        change(job, 'cancel_reason', '!' .. (some(given.reason) or ''))
        wake(STOP_HINT .. job.worker)
      else
        changed[#changed + 1] = {id, ''}
        finish(job, 'cancelled', some(given.reason))
      end
    end
  end
  return changed
end
