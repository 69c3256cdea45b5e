-- uses: due upcoming tick
-- A worker is gone.

local function answer_leave()
  if redis.call('EXISTS', worker_key(given.worker)) == 0 then
    return {}
  end
  will('DEL', worker_key(given.worker))
  place(store .. ':workers', given.worker, false)
  return {given.worker}
end
