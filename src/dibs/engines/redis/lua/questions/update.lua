-- uses: states gates
-- Change the priority or the time of a waiting job; its gate, if it has one, decides what follows.

local function waits_for_parents(job)
  return job.state == 'blocked' and not job.position
end

local function answer_update()
  local job = load(given.job)
  if not job or job.state == 'running' or ENDED[job.state] then
    return {}
  end
  leave(job)
  change(job, 'priority', some(given.priority) or job.priority, 'run_at', some(given.run_at) or job.run_at)
  if waits_for_parents(job) then
    enter(job, 'blocked')
  else
    wait_again(job, state_by_time(job.run_at))
  end
  wake(job.queue)
  return {job.id}
end
