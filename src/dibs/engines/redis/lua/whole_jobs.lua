-- Jobs as users see them.

-- All of a job as a flat list, and the job.
local function load_whole(id)
  local flat = redis.call('HGETALL', job_key(id))
  if #flat == 0 then
    return nil
  end
  local job = {id = id}
  for i = 1, #flat, 2 do
    job[flat[i]] = some(flat[i + 1])
  end
  loaded[id] = job
  flat[#flat + 1] = 'id'
  flat[#flat + 1] = id
  return job, flat
end
