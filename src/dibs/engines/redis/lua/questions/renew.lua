-- Renew the leases of the claims that still hold their job.

local function claim_row(job)
  return {job.id, job.token, job.lease_until, job.cancel_reason or ''}
end

local function answer_renew()
  return gather(given.claims, function(pair)
    local job = held(pair[1], pair[2])
    if not job then
      return nil
    end
    change(job, 'lease_until', text(now + given.lease))
    put(store .. ':leases', job.id, job.lease_until)
    return claim_row(job)
  end)
end
