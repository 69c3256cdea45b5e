-- uses: states gates pipelines
-- Remove jobs for good, unless they are running.

local function answer_delete()
  return gather(given.ids, function(id)
    local job = load(id)
    if not job or job.state == 'running' or job.gone then
      return nil
    end
    job.gone = true
    forget(job)
    return id
  end)
end
