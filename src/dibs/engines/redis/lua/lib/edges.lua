-- Parents and children: three sorted sets, read as they will be after the commit.
--
--   parents:C   the parents of C, by the order given; negative once the parent has succeeded
--   children:P  the children of P
--   asking:P    the children of P that have not finished, and may ask for its result

local PIECE = 500
local unmet, perhaps_free, left_pipelines = {}, {}, {}

local function key_of(name)
  return function(id) return store .. name .. id end
end

local parents_key, children_key, asking_key = key_of(':parents:'), key_of(':children:'), key_of(':asking:')

-- The id of a pipeline, not of a job: its version says so, as in `in_pipeline`.
local function is_pipeline(id)
  return string.byte(id, 15) == 56
end

-- -- Sets, as they will be -----------------------------------------------------------------------

-- These members, with what this script adds between `after` and `last`, and without what it removes.
local function as_collected(set, found, after, last)
  local collected = scores[set]
  if not collected then
    return found
  end
  local is_here = names(found)
  local members = gather(found, function(member) return collected[member] ~= false and member end)
  for member, score in pairs(collected) do
    if score and not is_here[member] and member > after and not (last and member > last) then
      members[#members + 1] = member
    end
  end
  table.sort(members)
  return members
end

-- A piece of a set with equal scores.
local function members_after(set, after)
  local start = after == '' and '-' or '(' .. after
  local found = redis.call('ZRANGEBYLEX', set, start, '+', 'LIMIT', 0, PIECE)
  local members = as_collected(set, found, after, found[PIECE])
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
  return #members_after(set, '') == 0
end

local function all_parents(id)
  return as_collected(parents_key(id), redis.call('ZRANGE', parents_key(id), 0, -1), '')
end

local function unmet_parents(id)
  local collected = scores[parents_key(id)] or {}
  local stored = redis.call('ZRANGEBYSCORE', parents_key(id), '(0', '+inf')
  return gather(stored, function(parent) return collected[parent] == nil and parent end)
end

-- How many parents have not succeeded: counted once, then kept up to date.
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
  put(parents_key(child), parent, order)
  put(children_key(parent), child, 0)
  if not is_pipeline(parent) then
    put(asking_key(parent), child, 0)
  end
end

-- Note that a parent has succeeded; false if that was known.
local function meet(child, parent)
  local order = score_of(parents_key(child), parent)
  if not order or order < 0 then
    return false
  end
  unmet[child] = unmet_of(child) - 1
  put(parents_key(child), parent, -order)
  return true
end

-- The child is a child of this parent no longer.
local function leave_parent(child, parent)
  put(children_key(parent), child, false)
  put(asking_key(parent), child, false)
end

-- The parent is gone: the child does not wait for it.
local function forget_edge(parent, child)
  meet(child, parent)
  put(parents_key(child), parent, false)
  leave_parent(child, parent)
end

local function forget_parent(child, parent)
  leave_parent(child, parent)
  perhaps_free[parent] = true
end

-- Whether a job has more parents than one script may change.
local function has_many_parents(id)
  return redis.call('ZCARD', parents_key(id)) > PIECE
end

-- A job finished. If it has very many parents it stays in their sets until `prune` removes it there.
local function no_longer_asks(id)
  if has_many_parents(id) then
    return 0
  end
  local parents = all_parents(id)
  for _, parent in ipairs(parents) do
    put(asking_key(parent), id, false)
    perhaps_free[parent] = true
  end
  return #parents
end

local function asks(id, parent)
  if exists(parent) then
    put(asking_key(parent), id, 0)
  end
end

local function forget_children(id, may_be_waited_for)
  if not may_be_waited_for then
    will('DEL', children_key(id))
  end
  will('DEL', asking_key(id))
end

local function state_of(id)
  local job = loaded[id]
  return job and (not job.gone and job.state) or not job and redis.call('HGET', job_key(id), 'state')
end

-- -- Results that may be asked for ---------------------------------------------------------------

local MOST_GHOSTS = 100

-- Whether a job that has not finished may still ask for the result; entries of others are removed.
local function is_waited_for(id)
  local asking = redis.call('ZRANGE', asking_key(id), 0, MOST_GHOSTS - 1)
  for _, child in ipairs(asking) do
    local state = state_of(child)
    if state and not ENDED[state] then
      return true
    end
    put(asking_key(id), child, false)
  end
  return #asking == MOST_GHOSTS
end

local function holds_train(id)
  local job = load(id)
  return job and job.position and job.train and gates().gate_of(job).held_by == id
end

-- Jobs that `prune` kept because a child could ask for their result, and no child can any more.
local function release_kept_parents()
  local kept = store .. ':kept'
  if redis.call('EXISTS', kept) == 0 then
    return
  end
  for id in pairs(perhaps_free) do
    local is_kept = not (scores[kept] and scores[kept][id] == false) and redis.call('ZSCORE', kept, id)
    if is_kept and is_empty(asking_key(id)) and not holds_train(id) then
      put(kept, id, text(now))
    end
  end
end

local function forget_empty_pipelines()
  for id in pairs(left_pipelines) do
    if is_empty(store .. ':pipeline:' .. id) then
      will('DEL', store .. ':drawn:' .. id)
      put(store .. ':drawn', id, false)
    end
  end
end
