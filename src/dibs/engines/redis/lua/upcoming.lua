-- uses: due
-- What is due: upkeep now, anything ready, and the next due time and lease.

local function next_due()
  local due, offer_ends = first_score(store .. ':scheduled'), first_score(store .. ':offers')
  return due and offer_ends and text(math.min(due, offer_ends)) or due or offer_ends
end

local function answer_upcoming()
  return {
    is_overdue(), redis.call('SCARD', store .. ':busy'), next_due() or '',
    first_score(store .. ':leases') or '', text(now),
  }
end
