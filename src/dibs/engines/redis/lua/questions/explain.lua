-- uses: reading limits
-- A job, and the settings of its queue.

local function answer_explain()
  local job, flat = load_whole(given.job)
  if not job then
    return {}
  end
  local is_paused, limit = limits.settings_of(job.queue)
  local asked = job.state == 'running' and cancel_reason(job) or false
  return {flat, is_paused, limit, limits.running_in(job.queue), asked, text(now)}
end
