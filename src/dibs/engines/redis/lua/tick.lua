-- uses: due upcoming
-- A worker says that it is there, and hears what is due, and itself: so it knows that it hears.

local function worker_key(name)
  return store .. ':worker:' .. name
end

local function forget_the_silent()
  local horizon = '(' .. text(now - given.forget_after)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', store .. ':workers', '-inf', horizon, 'LIMIT', 0, 100)) do
    place(store .. ':workers', name, false)
    will('DEL', worker_key(name))
  end
end

local function answer_tick()
  forget_the_silent()
  local key = worker_key(given.worker)
  local started_at = redis.call('HGET', key, 'started_at') or text(now)
  will('HSET', key, 'queues', some(given.queues) or '', 'kinds', given.kinds, 'concurrency', given.concurrency,
    'running', given.running, 'started_at', started_at, 'seen_at', text(now))
  place(store .. ':workers', given.worker, text(now))
  wake(given.echo)
  return answer_upcoming()
end
