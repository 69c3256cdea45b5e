-- Is there anything for upkeep to do, and when will there be?

local function first_score(set)
  return redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]
end

local function is_overdue()
  for _, set in ipairs({':scheduled', ':leases', ':offers', ':onward'}) do
    local first = first_score(store .. set)
    if first and tonumber(first) <= now then
      return 1
    end
  end
  return 0
end
