-- uses: at_gates places moves forget turns steps
-- Remove jobs for good, unless they are running.

local function answer_delete()
  local gone = {}
  for _, id in ipairs(given.ids) do
    local job = load(id)
    if job and job.state ~= 'running' and not job.gone then
      job.gone = true
      forget(job)
      gone[#gone + 1] = id
    end
  end
  return gone
end
