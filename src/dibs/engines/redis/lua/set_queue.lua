-- Pause, resume or limit a queue.

local function answer_set_queue()
  will('SADD', store .. ':settings', given.queue)
  if given.paused ~= cjson.null then
    will(given.paused and 'SADD' or 'SREM', store .. ':paused', given.queue)
  end
  if given.set_limit then
    if given.max_running == cjson.null then
      will('HDEL', store .. ':limits', given.queue)
    else
      will('HSET', store .. ':limits', given.queue, given.max_running)
    end
  end
  wake(given.queue)
  return {}
end
