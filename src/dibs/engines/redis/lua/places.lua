-- Where a job stands: only `leave` and `enter` move it.

local function leave(job)
  local line = line_of(job)
  place(ids_key(job.state, line), job.id, false)
  if ENDED[job.state] then
    place(store .. ':ended:' .. job.state, job.id, false)
    if job.position or job.unique_until or is_step(job) then
      place(store .. ':kept', job.id, false)
    end
    return
  end
  if job.position then
    turns().leave_place(job)
  end
  if job.state == 'ready' then
    place(ready_key(line), rank(job), false)
    busy_lines[line] = true
  elseif job.state == 'scheduled' then
    place(store .. ':scheduled', job.id, false)
  elseif job.state == 'running' then
    place(store .. ':leases', job.id, false)
    freed[job.queue] = (freed[job.queue] or 0) + 1
  elseif not job.position then
    place(store .. ':waiting', job.id, false)
  end
end

local function enter(job, state)
  local line = line_of(job)
  job.state = state
  place(ids_key(state, line), job.id, 0)
  if ENDED[state] then
    local kept = (job.position or job.unique_until) and turns().kept_until(job)
    if kept then
      place(store .. ':kept', job.id, kept)
    else
      place(store .. ':ended:' .. state, job.id, job.finished_at)
    end
    return
  end
  if job.position then
    turns().take_place(job, state)
  end
  if state == 'ready' then
    place(ready_key(line), rank(job), 0)
    busy_lines[line] = true
  elseif state == 'scheduled' then
    place(store .. ':scheduled', job.id, job.run_at)
  elseif state == 'running' then
    place(store .. ':leases', job.id, job.lease_until)
  elseif not job.position then
    place(store .. ':waiting', job.id, 0)
  end
end

-- Of a job whose hash is gone (evicted, or deleted by hand) only its places are left.
local function drop_ghost(set, member)
  place(set, member, false)
end
