-- uses: states gates pipelines
-- Put failed or cancelled jobs back with all their attempts; make scheduled ones due now.

-- The job that holds its train becomes its head again; another goes to the end. At a slot it pre-empts none.
local function rejoin(job)
  local gate = gates().gate_of(job)
  if gate.held_by == job.id then
    gate.held_by, job.holds_train = nil, nil
    gates().touch(gate)
  else
    gates().join(job)
  end
  return 'blocked'
end

-- A job that waits for its parents again keeps its time.
local function start_over(job)
  leave(job)
  take_key(job)
  local waits = in_pipeline(job) and pipelines().waits(job.id)
  local state = waits and 'blocked' or (job.train or job.slot) and rejoin(job) or 'ready'
  begin_anew(job, state, waits and job.run_at or text(now))
  if in_pipeline(job) then
    pipelines().returned(job)
  end
end

local function retried(job)
  if job.state == 'scheduled' then
    wait_again(job, 'ready', text(now))
    return true
  end
  local holder = job.unique_key and holder_of(job.unique_key)
  local is_key_taken = holder and holder.id ~= job.id
  if is_key_taken or job.state ~= 'failed' and job.state ~= 'cancelled' then
    return false
  end
  load_columns(job, AT_GATES)
  start_over(job)
  return true
end

local function answer_retry()
  local changed = gather(given.ids, function(id)
    local job = load(id)
    return job and retried(job) and id
  end)
  if changed[1] then
    wake('')
  end
  return changed
end
