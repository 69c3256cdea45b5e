-- uses: upkeep
-- Store the heartbeat of a worker and return what is due. Its own hint comes back to it and proves that it hears.

local function forget_silent_workers()
  local since = '(' .. text(now - given.forget_after)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', store .. ':workers', '-inf', since, 'LIMIT', 0, 100)) do
    put(store .. ':workers', name, false)
    will('DEL', upkeep.worker_key(name))
  end
end

local function answer_tick()
  forget_silent_workers()
  local key = upkeep.worker_key(given.worker)
  local started_at = redis.call('HGET', key, 'started_at') or text(now)
  will('HSET', key, 'version', some(given.version) or '', 'queues', some(given.queues) or '', 'kinds', given.kinds, 'concurrency', given.concurrency,
    'running', given.running, 'started_at', started_at, 'seen_at', text(now))
  put(store .. ':workers', given.worker, text(now))
  wake(given.echo)
  return upkeep.upcoming()
end
