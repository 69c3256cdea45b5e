-- uses: upkeep
-- Remove a worker that is gone.

local function answer_leave()
  local key = upkeep.worker_key(given.worker)
  if redis.call('EXISTS', key) == 0 then
    return {}
  end
  will('DEL', key)
  put(store .. ':workers', given.worker, false)
  return {given.worker}
end
