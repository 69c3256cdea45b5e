-- Push the leases of those claims that still hold their job.

local function standing(job)
  return {job.id, job.token, job.lease_until, job.cancel_reason or ''}
end

local function answer_renew()
  local answers = {}
  for _, pair in ipairs(given.claims) do
    local job = held(pair[1], pair[2])
    if job then
      change(job, 'lease_until', text(now + given.lease))
      place(store .. ':leases', job.id, job.lease_until)
      answers[#answers + 1] = standing(job)
    end
  end
  return answers
end
