-- Whether upkeep has anything to do, when it will, and the hashes of workers.

local upkeep = {}

local function first_score(set)
  return redis.call('ZRANGE', store .. set, 0, 0, 'WITHSCORES')[2]
end

function upkeep.is_overdue()
  for _, set in ipairs({':scheduled', ':leases', ':offers', ':onward'}) do
    local first = first_score(set)
    if first and tonumber(first) <= now then
      return 1
    end
  end
  return 0
end

-- {whether upkeep is overdue, how many pairs have ready jobs, the next due time, the next lease, the time, how many
-- changes of schedules there were}
function upkeep.upcoming()
  local due, offer_ends = first_score(':scheduled'), first_score(':offers')
  local next_due = due and offer_ends and text(math.min(due, offer_ends)) or due or offer_ends
  local ready = redis.call('SCARD', store .. ':busy')
  local changes = redis.call('GET', store .. ':schedules:count') or '0'
  return {upkeep.is_overdue(), ready, next_due or '', first_score(':leases') or '', text(now), changes}
end

function upkeep.worker_key(name)
  return store .. ':worker:' .. name
end
