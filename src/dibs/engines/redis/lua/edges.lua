-- Who waits for whom: three sorted sets, and how they will be once this script has committed.
--
--   parents:C   whom C waits for, by the order given; negative once that one has succeeded
--   children:P  who waits for P, or has
--   asking:P    those of them that have not ended, and may ask for its result

local PIECE = 500
local unmet, perhaps_free, left_pipelines = {}, {}, {}

local function parents_key(id)
  return store .. ':parents:' .. id
end

local function children_key(id)
  return store .. ':children:' .. id
end

local function asking_key(id)
  return store .. ':asking:' .. id
end

-- Not a job's: its version tells, as in `is_step`.
local function is_pipeline(id)
  return string.byte(id, 15) == 56
end

-- -- Sets, as planned ----------------------------------------------------------------------------

-- These members, with what this script adds between `after` and `last`, and without what it takes out.
local function as_planned(set, found, after, last)
  local planned = scores[set]
  if not planned then
    return found
  end
  local is_here, members = names(found), {}
  for _, member in ipairs(found) do
    if planned[member] ~= false then
      members[#members + 1] = member
    end
  end
  for member, score in pairs(planned) do
    if score and not is_here[member] and member > after and not (last and member > last) then
      members[#members + 1] = member
    end
  end
  table.sort(members)
  return members
end

-- A piece of a set whose scores are all 0.
local function members_after(set, after)
  local start = after == '' and '-' or '(' .. after
  local found = redis.call('ZRANGEBYLEX', set, start, '+', 'LIMIT', 0, PIECE)
  local members = as_planned(set, found, after, found[PIECE])
  return #members == 0 and #found > 0 and members_after(set, found[#found]) or members
end

local function score_of(set, member)
  local score = scores[set] and scores[set][member]
  if score == nil then
    score = redis.call('ZSCORE', set, member)
  end
  return score and tonumber(score)
end

local function is_empty(set)
  local size = redis.call('ZCARD', set)
  for member, score in pairs(scores[set] or {}) do
    local is_here = redis.call('ZSCORE', set, member)
    if score and not is_here then
      size = size + 1
    elseif not score and is_here then
      size = size - 1
    end
  end
  return size == 0
end

local function all_parents(id)
  return as_planned(parents_key(id), redis.call('ZRANGE', parents_key(id), 0, -1), '')
end

local function unmet_parents(id)
  local planned, found = scores[parents_key(id)] or {}, {}
  for _, parent in ipairs(redis.call('ZRANGEBYSCORE', parents_key(id), '(0', '+inf')) do
    if planned[parent] == nil then
      found[#found + 1] = parent
    end
  end
  return found
end

-- How many have not succeeded: counted once, then kept up to date.
local function unmet_of(id)
  if not unmet[id] then
    unmet[id] = redis.call('ZCOUNT', parents_key(id), '(0', '+inf')
  end
  return unmet[id]
end

local function has_children(id)
  return scores[children_key(id)] or redis.call('EXISTS', children_key(id)) == 1
end

-- -- Changes -------------------------------------------------------------------------------------

local function add_edge(parent, child, order)
  unmet[child] = (unmet[child] or 0) + 1
  place(parents_key(child), parent, order)
  place(children_key(parent), child, 0)
  if not is_pipeline(parent) then
    place(asking_key(parent), child, 0)
  end
end

-- Whether that was not known before.
local function meet(child, parent)
  local order = score_of(parents_key(child), parent)
  if not order or order < 0 then
    return false
  end
  unmet[child] = unmet_of(child) - 1
  place(parents_key(child), parent, -order)
  return true
end

-- Nobody waits for what is gone.
local function forget_edge(parent, child)
  meet(child, parent)
  place(parents_key(child), parent, false)
  place(children_key(parent), child, false)
  place(asking_key(parent), child, false)
end

-- Whether a job has so many parents that one script can't tell them all.
local function has_many_parents(id)
  return redis.call('ZCARD', parents_key(id)) > PIECE
end

-- An end. Who has very many parents stays in their sets until prune looks there.
local function no_longer_asks(id)
  if has_many_parents(id) then
    return 0
  end
  local parents = all_parents(id)
  for _, parent in ipairs(parents) do
    place(asking_key(parent), id, false)
    perhaps_free[parent] = true
  end
  return #parents
end

local function asks(id, parent)
  if exists(parent) then
    place(asking_key(parent), id, 0)
  end
end

local function forget_parent(id, parent)
  place(children_key(parent), id, false)
  place(asking_key(parent), id, false)
  perhaps_free[parent] = true
end

local function forget_children(id, may_be_waited_for)
  if not may_be_waited_for then
    will('DEL', children_key(id))
  end
  will('DEL', asking_key(id))
end

local function state_of(id)
  local job = loaded[id]
  if job then
    return not job.gone and job.state
  end
  return redis.call('HGET', job_key(id), 'state')
end

-- -- Kept for those who may ask ------------------------------------------------------------------

local MOST_GHOSTS = 100

-- Whether a job that has not ended may still ask for its result; who has ended, or was deleted by hand, does not.
local function is_waited_for(id)
  local asking = redis.call('ZRANGE', asking_key(id), 0, MOST_GHOSTS - 1)
  for _, child in ipairs(asking) do
    local state = state_of(child)
    if state and not ENDED[state] then
      return true
    end
    drop_ghost(asking_key(id), child)
  end
  return #asking == MOST_GHOSTS
end

local function holds_train(id)
  local job = load(id)
  return job and job.position and job.train and turns().gate_of(job).held_by == id
end

-- Those whom prune met while somebody waited for them, and nobody does any more.
local function let_parents_go()
  local kept = store .. ':kept'
  if redis.call('EXISTS', kept) == 0 then
    return
  end
  for id in pairs(perhaps_free) do
    local is_kept = not (scores[kept] and scores[kept][id] == false) and redis.call('ZSCORE', kept, id)
    if is_kept and is_empty(asking_key(id)) and not holds_train(id) then
      place(kept, id, text(now))
    end
  end
end

local function forget_empty_pipelines()
  for id in pairs(left_pipelines) do
    if is_empty(store .. ':pipeline:' .. id) then
      will('DEL', store .. ':drawn:' .. id)
      place(store .. ':drawn', id, false)
    end
  end
end
