-- uses: at_gates places moves turns steps
-- Put failed or cancelled jobs back with a fresh budget; make scheduled ones due now.

-- Who holds its train gets its old place, others its end; a slot's job pushes nobody.
local function rejoin(job)
  local gate = turns().gate_of(job)
  if gate.held_by == job.id then
    gate.held_by, job.holds_train = nil, nil
    turns().touch(gate)
  else
    turns().join(job)
  end
  return 'blocked'
end

local function start_over(job)
  leave(job)
  take_key(job)
  local waits = is_step(job) and steps().waits(job.id)
  local state = waits and 'blocked' or (job.train or job.slot) and rejoin(job) or 'ready'
  begin_anew(job, state, waits and job.run_at or text(now))
  if is_step(job) then
    steps().returned(job)
  end
end

local function is_key_taken(job)
  local holder = job.unique_key and holder_of(job.unique_key)
  return holder and holder.id ~= job.id
end

local function retried(job)
  if job.state == 'scheduled' then
    wait_again(job, 'ready', text(now))
    return true
  end
  if (job.state ~= 'failed' and job.state ~= 'cancelled') or is_key_taken(job) then
    return false
  end
  load_columns(job, AT_GATES)
  start_over(job)
  return true
end

local function answer_retry()
  local changed = {}
  for _, id in ipairs(given.ids) do
    local job = load(id)
    if job and retried(job) then
      changed[#changed + 1] = id
      wake('')
    end
  end
  return changed
end
