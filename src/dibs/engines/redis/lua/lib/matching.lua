-- The jobs that a filter means, and pages of ids.

local matching = {}
local PAGE = 500

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
  for _, name in ipairs({'queue', 'kind', 'train', 'slot', 'pipeline_id', 'worker'}) do
    local like = some(given[name .. '_like'])
    if some(given[name]) and given[name] ~= job[name] or like and not (job[name] and is_like(job[name], like)) then
      return false
    end
  end
  if some(given.since) and tonumber(job.enqueued_at) < now - given.since then
    return false
  end
  local states = some(given.states)
  return (not states or names(states)[job.state]) and has_tags(job)
end

-- The first ids after `after` in all these sets, `piece` from each, and the last id of this page. Beyond it ids may
-- be missing, because a set had more than a piece; so pages never overlap and never skip. nil: these are all.
function matching.page(sets, after, piece, newest_first)
  local command = newest_first and 'ZREVRANGEBYLEX' or 'ZRANGEBYLEX'
  local newer_than = some(given.newer_than)
  local first, last = newest_first and '+' or '-', newest_first and newer_than and '(' .. newer_than
    or newest_first and '-' or '+'
  if not newest_first and newer_than and (not after or newer_than > after) then
    after = newer_than
  end
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

-- Whether the sizes of the sets say how many jobs match.
function matching.is_by_sets()
  local reads = {'slot', 'train', 'pipeline_id', 'worker', 'worker_like', 'train_like', 'since', 'newer_than', 'after'}
  return not gather(reads, function(name) return some(given[name]) end)[1] and not given.tags[1]
end

local COLUMNS = {'state', 'queue', 'kind', 'train', 'slot', 'pipeline_id', 'worker', 'tags', 'enqueued_at'}
local TEXTS = {'args', 'errors', 'message'}

local function is_in(part, ...)
  if not some(part) then
    return true
  end
  return gather({...}, function(value) return string.find(string.lower(value), part, 1, true) end)[1]
end

-- Whether its texts hold what is looked for, in lower case.
local function may_match(job)
  if not (some(given.in_args) or some(given.in_errors) or some(given.in_text)) then
    return true
  end
  load_columns(job, TEXTS)
  local errors = job.errors or '[]'
  return is_in(given.in_args, job.args) and is_in(given.in_errors, errors)
    and is_in(given.in_text, job.kind, job.message or '', errors)
end

local function piece_of(sets)
  return math.max(20, math.ceil(PAGE / math.max(1, #sets)))
end

-- {id after which the next page begins or '', how many matched, the last of them, {id, place}, …}, with up to `most`
-- of the jobs with texts that may match.
function matching.search(scan, most)
  local sets = matching.sets()
  local ids, page_ends = matching.page(sets, some(given.after), piece_of(sets), true)
  local found = {page_ends or '', 0, ''}
  for _, id in ipairs(ids) do
    if found[2] == scan or most > 0 and #found == most + 3 then
      break
    end
    local job = {id = id}
    load_columns(job, COLUMNS)
    if job.state and matches(job) then
      found[2], found[3] = found[2] + 1, id
      if most > 0 and may_match(job) then
        found[#found + 1] = {id, found[2]}
      end
    end
  end
  return found
end

-- {id after which the next page begins or '', what `f` makes of a matching job, …}
function matching.find(newest_first, f)
  local sets, found = matching.sets(), {''}
  local ids, page_ends = matching.page(sets, some(given.after), piece_of(sets), newest_first)
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
