-- uses: upkeep
-- The workers that had a heartbeat within this time.

local function answer_workers()
  local since = text(now - given.silence)
  return gather(redis.call('ZRANGEBYSCORE', store .. ':workers', since, '+inf'), function(name)
    return {'name', name, unpack(redis.call('HGETALL', upkeep.worker_key(name)))}
  end)
end
