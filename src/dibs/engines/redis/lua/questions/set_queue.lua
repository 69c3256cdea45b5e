-- Pause, resume or limit a queue.

local function answer_set_queue()
  -- To remove a setting that is not there leaves nothing behind.
  if given.paused == true or given.max_running ~= cjson.null then
    will('SADD', store .. ':settings', given.queue)
  end
  if given.paused ~= cjson.null then
    will(given.paused and 'SADD' or 'SREM', store .. ':paused', given.queue)
  end
  if given.set_limit and given.max_running == cjson.null then
    will('HDEL', store .. ':limits', given.queue)
  elseif given.set_limit then
    will('HSET', store .. ':limits', given.queue, given.max_running)
  end
  wake(given.queue)
  return {}
end
