-- uses: upkeep
-- The workers that had a heartbeat within this time, with how many jobs each runs: its own report is older.

local function running_jobs()
  local found = {}
  for _, id in ipairs(redis.call('ZRANGE', store .. ':leases', 0, -1)) do
    local worker = redis.call('HGET', job_key(id), 'worker')
    if worker then
      found[worker] = (found[worker] or 0) + 1
    end
  end
  return found
end

local function answer_workers()
  local since, running = text(now - given.silence), running_jobs()
  return gather(redis.call('ZRANGEBYSCORE', store .. ':workers', since, '+inf'), function(name)
    local flat = {'name', name, unpack(redis.call('HGETALL', upkeep.worker_key(name)))}
    append(flat, {'running', tostring(running[name] or 0)})
    return flat
  end)
end
