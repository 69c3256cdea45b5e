-- Pause, resume or limit a queue.

local function answer_set_queue()
  -- To lift what is not set leaves nothing behind.
  if given.paused == true or given.max_running ~= cjson.null then
    will('SADD', store .. ':settings', given.queue)
  end
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
