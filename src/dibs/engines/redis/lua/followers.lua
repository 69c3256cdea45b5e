-- uses: whole_jobs
-- Who is behind the holder of this claim on its train, each with a new token. Nothing is written for them.

local function is_open(queue)
  return redis.call('SISMEMBER', store .. ':paused', queue) == 0
    and redis.call('HEXISTS', store .. ':limits', queue) == 0
end

-- By position: that is what a member of a train begins with (gate.lua).
local function behind(head)
  local next = string.format('[%013d', head.position + 1000000000001)
  return redis.call('ZRANGEBYLEX', store .. ':members:train:' .. head.train, next, '+', 'LIMIT', 0, given.limit)
end

local function answer_followers()
  local head, answers = held(given.job, given.token), {}
  if not head or not head.train or tonumber(head.lease_until) <= now then
    return answers
  end
  local last_token = tonumber(redis.call('GET', store .. ':token') or '0')
  for _, member in ipairs(behind(head)) do
    local job, flat = load_whole(string.sub(member, -36))
    if job then
      local is_due = tonumber(job.run_at) <= now
      answers[#answers + 1] = {
        flat, text(last_token + #answers + 1), is_due and 1 or 0, is_open(job.queue) and 1 or 0,
      }
    end
  end
  if #answers > 0 then
    will('INCRBY', store .. ':token', #answers)
  end
  return answers
end
