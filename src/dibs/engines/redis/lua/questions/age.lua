-- uses: reading states gates
-- Make everything stored older; only tests ask this.

local TIMES = {'run_at', 'enqueued_at', 'claimed_at', 'finished_at', 'lease_until', 'unique_until'}

local function older(time)
  local seconds, micros = parts(time)
  local away = math.floor(given.micros / 1000000)
  seconds, micros = seconds - away, micros - (given.micros - away * 1000000)
  if micros < 0 then
    seconds, micros = seconds - 1, micros + 1000000
  end
  if seconds < 0 then
    return text(seconds * 1000000 + micros)
  end
  return string.gsub(string.format('%d%06d', seconds, micros), '^0+(%d)', '%1')
end

local function age_job(id)
  local job = load(id)
  if not job then
    return
  end
  local state = job.state
  job.holds_train = job.position and ENDED[state] and gates().gate_of(job).held_by == id
  leave(job)
  local values = redis.call('HMGET', job_key(id), unpack(TIMES))
  for i, name in ipairs(TIMES) do
    if some(values[i]) then
      change(job, name, (older(values[i])))
    end
  end
  enter(job, state)
end

local function answer_age()
  for _, set in ipairs(id_sets(STATES)) do
    for _, id in ipairs(redis.call('ZRANGE', set[1], 0, -1)) do
      age_job(id)
    end
  end
  local offers = redis.call('ZRANGE', store .. ':offers', 0, -1, 'WITHSCORES')
  for i = 1, #offers, 2 do
    put(store .. ':offers', offers[i], (older(text(offers[i + 1]))))
  end
  local ticks = redis.call('HGETALL', store .. ':schedules')
  for i = 1, #ticks, 2 do
    will('HSET', store .. ':schedules', ticks[i], (older(ticks[i + 1])))
  end
  for _, id in ipairs(redis.call('ZRANGE', store .. ':drawn', 0, -1)) do
    local key = store .. ':drawn:' .. id
    will('HSET', key, 'begun', (older(redis.call('HGET', key, 'begun'))))
  end
  return {}
end
