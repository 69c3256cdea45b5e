-- The jobs that a filter means, and pages of ids.

local matching = {}

-- The keys of all sets that may list matching ids.
function matching.sets()
  if some(given.pipeline_id) then
    return {store .. ':pipeline:' .. given.pipeline_id}
  end
  for _, sort in ipairs({'train', 'slot'}) do
    if some(given[sort]) then
      return {store .. ':gated:' .. sort .. ':' .. given[sort]}
    end
  end
  local sets = id_sets(some(given.states) or STATES, some(given.queue), some(given.kind))
  return gather(sets, function(set) return set[1] end)
end

local function has_tags(job)
  local own = given.tags[1] and names(cjson.decode(job.tags or '[]'))
  return not gather(given.tags, function(tag) return not own[tag] end)[1]
end

local function matches(job)
  for _, name in ipairs({'queue', 'kind', 'train', 'slot', 'pipeline_id'}) do
    if some(given[name]) and given[name] ~= job[name] then
      return false
    end
  end
  local states = some(given.states)
  return (not states or names(states)[job.state]) and has_tags(job)
end

-- The first ids after `after` in all these sets, `piece` from each, and the last id of this page. Beyond it ids may
-- be missing, because a set had more than a piece; so pages never overlap and never skip. nil: these are all.
function matching.page(sets, after, piece, newest_first)
  local command = newest_first and 'ZREVRANGEBYLEX' or 'ZRANGEBYLEX'
  local first, last = newest_first and '+' or '-', newest_first and '-' or '+'
  local function is_before(one, other)
    if newest_first then
      return one > other
    end
    return one < other
  end
  local ids, page_ends = {}, nil
  for _, set in ipairs(sets) do
    local found = redis.call(command, set, after and '(' .. after or first, last, 'LIMIT', 0, piece)
    append(ids, found)
    local end_of_piece = found[piece]
    if end_of_piece and (not page_ends or is_before(end_of_piece, page_ends)) then
      page_ends = end_of_piece
    end
  end
  table.sort(ids, is_before)
  while page_ends and is_before(page_ends, ids[#ids]) do
    ids[#ids] = nil
  end
  return ids, page_ends
end

local PAGE = 500

-- {id after which the next page begins or '', what `f` makes of a matching job, …}
function matching.find(newest_first, f)
  local sets, found = matching.sets(), {''}
  local piece = math.max(20, math.ceil(PAGE / math.max(1, #sets)))
  local ids, page_ends = matching.page(sets, some(given.after), piece, newest_first)
  for _, id in ipairs(ids) do
    if #found > given.limit then
      break
    end
    local job, flat = load_whole(id)
    if job and matches(job) then
      found[#found + 1] = f(id, flat)
    end
  end
  found[1] = page_ends or ''
  return found
end
