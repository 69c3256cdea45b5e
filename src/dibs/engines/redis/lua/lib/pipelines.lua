-- uses: edges
-- What the end, return or removal of a job means for its children: the rules of ADR 18. With the file that it uses
-- this is one module, a table that states.lua reads when the first job of a pipeline is met.
--
-- A change only notes what follows from it; `go_on` then does that, child by child, as long as the budget lasts. What
-- is left is stored in `onward`, for the `go_on` of the next script: the caller's next question, or a sweep if the
-- caller died. Every note is decided anew when it is handled, so it does no harm if jobs have changed in between.

local budget = 500 -- children that one script changes; reading a job or an edge counts as a tenth
local READ_COST = 0.1
local notes, next_note, seen = {}, 1, {}
local MOST_RESUMED, resumed = 100, 0
local policies = {} -- on_failed of pipelines that this script stores

-- What follows from one end comes before the next end: a child of two jobs that ended is cancelled for the first.
local function position_in_notes(id, origin)
  for at = #notes, id == origin and #notes + 1 or next_note, -1 do
    if notes[at].origin == origin then
      return at + 1
    end
  end
  return #notes + 1
end

-- The children of `id` are concerned. If they are cancelled, it is because `origin` ended as `state`, or is gone.
local function note(verb, id, origin, state)
  origin, state = origin or id, state or '-'
  local key = table.concat({verb, id, origin, state}, ' ')
  if not seen[key] then
    seen[key] = true
    local one = {verb = verb, id = id, origin = origin, state = state, after = ''}
    table.insert(notes, position_in_notes(id, origin), one)
  end
end

-- Read the notes that earlier scripts left.
local function resume()
  local texts = redis.call('ZRANGE', store .. ':onward', 0, MOST_RESUMED - 1)
  resumed = #texts
  for _, text in ipairs(texts) do
    local verb, id, origin, state, after = string.match(text, '^(%S+) (%S+) (%S+) (%S+) (%S*)$')
    seen[table.concat({verb, id, origin, state}, ' ')] = true
    notes[#notes + 1] = {verb = verb, id = id, origin = origin, state = state, after = after, text = text}
  end
end

local function load_live(id)
  local job = load(id)
  return job and not job.gone and job
end

local function waits_for_parents(job)
  return job.state == 'blocked' and not job.position
end

local function on_failed(pipeline)
  return policies[pipeline] or redis.call('HGET', store .. ':drawn:' .. pipeline, 'on_failed')
end

-- -- Changes of a child --------------------------------------------------------------------------

-- All its parents have succeeded: from now on it is like a new job.
local function let_go(job)
  load_columns(job, AT_GATES)
  load_columns(job, {'slot_policy'})
  leave(job)
  if job.slot_policy == 'replace' then
    gates().supersede(job.slot, job.id)
  end
  local has_gate = job.train or job.slot
  local state = has_gate and gates().join(job, job.slot_policy) or state_by_time(job.run_at)
  change(job, 'state', state)
  enter(job, state)
  if state == 'ready' then
    let_through[#let_through + 1] = job
  end
end

local BECAUSE = {failed = PARENT_FAILED, cancelled = PARENT_CANCELLED, gone = PARENT_DELETED}

local function cancel_for(job, cause)
  job.cause = cause
  change(job, 'settled_as', 'parent')
  finish(job, 'cancelled', string.format(BECAUSE[cause.state], cause.origin))
end

local function was_cancelled_for_parent(job)
  return (job.settled_as or redis.call('HGET', job_key(job.id), 'settled_as')) == 'parent'
end

-- Whether all parents that have not succeeded yet still may.
local function may_wait(id)
  local parents = unmet_parents(id)
  budget = budget - READ_COST * #parents
  return not gather(parents, function(parent)
    local state = state_of(parent)
    return not state or ENDED[state]
  end)[1]
end

-- -- What follows for one child ------------------------------------------------------------------

local FOLLOWS, returned = {}, nil
local free_children = {} -- they wait for no parent any more, and have no position yet

-- Children that are let go together get their positions in the order of their ids, in whatever order parents ended.
local function let_go_if_free(id)
  local child = load_live(id)
  if child and waits_for_parents(child) and unmet_of(id) == 0 then
    budget = budget - 1
    free_children[#free_children + 1] = child
  end
end

local function let_free_children_go()
  table.sort(free_children, function(one, other) return one.id < other.id end)
  local children = free_children
  free_children = {}
  for _, child in ipairs(children) do
    if waits_for_parents(child) then
      let_go(child)
    end
  end
end

function FOLLOWS.met(one, id)
  if meet(id, one.id) then
    let_go_if_free(id)
  end
end

-- All of a pipeline is stored: jobs that waited only for that may go.
function FOLLOWS.begin(one, id)
  forget_edge(one.id, id)
  let_go_if_free(id)
end

function FOLLOWS.cancel(one, id)
  if one.state == 'gone' and one.id == one.origin then
    forget_edge(one.id, id)
  end
  local child = load_live(id)
  if child and waits_for_parents(child) then
    cancel_for(child, one)
  elseif child and ENDED[child.state] and child.state ~= 'succeeded' and has_children(id) then
    note('cancel', id, one.origin, one.state)
  end
end

function FOLLOWS.revive(_, id)
  local child = load_live(id)
  local was_cancelled = child and child.state == 'cancelled' and was_cancelled_for_parent(child)
  if not was_cancelled or not may_wait(id) then
    return
  end
  leave(child)
  begin_anew(child, 'blocked', child.run_at)
  returned(child)
  let_go_if_free(id)
end

-- A job that may run again may ask for the results of its parents.
function FOLLOWS.ask(one, parent) asks(one.id, parent) end

-- A job is gone that had more parents than one script may change.
function FOLLOWS.part(one, parent) forget_parent(one.id, parent) end

-- Not all of a pipeline was ever stored, and the caller that began it is gone.
function FOLLOWS.undo(_, id)
  local job = load_live(id)
  if job then
    budget = budget - 1
    forget(job)
  end
end

-- Whether a note still applies.
local function still_holds(one)
  local job = load_live(one.id)
  local failed = job and ENDED[job.state] and job.state ~= 'succeeded'
  if one.verb == 'cancel' then
    return failed or not job and one.state == 'gone' and one.id == one.origin
  end
  if one.verb == 'part' then
    return not job
  end
  return one.verb ~= 'revive' and one.verb ~= 'ask' or job and not failed
end

local function concerned(one)
  if one.verb == 'ask' or one.verb == 'part' then
    local first = tonumber(one.after) or 0
    return redis.call('ZRANGE', parents_key(one.id), first, first + PIECE - 1)
  end
  local set = one.verb == 'undo' and store .. ':pipeline:' .. one.id or children_key(one.id)
  return members_after(set, one.after)
end

-- Where to continue: parents are not in the order of their ids, so they are counted.
local function after(one, id)
  return (one.verb == 'ask' or one.verb == 'part') and (tonumber(one.after) or 0) + 1 or id
end

-- True once all jobs that a note concerns were handled.
local function follow(one)
  while budget > 0 do
    local ids = concerned(one)
    for _, id in ipairs(ids) do
      if budget <= 0 then
        return false
      end
      FOLLOWS[one.verb](one, id)
      one.after, budget = after(one, id), budget - READ_COST
    end
    if #ids == 0 then
      return true
    end
  end
  return false
end

local function follow_all()
  while notes[next_note] and budget > 0 do
    local one = notes[next_note]
    local holds = still_holds(one)
    local is_done = not holds or follow(one)
    if one.text then
      put(store .. ':onward', one.text, false)
      one.text = nil
    end
    if not is_done then
      return
    end
    if holds and one.verb == 'part' then
      will('DEL', parents_key(one.id))
    elseif holds and one.id == one.origin and not load_live(one.id) then
      forget_children(one.id)
    end
    next_note = next_note + 1
  end
end

-- Of the jobs that ended in this script the older first; what follows from each stays together.
local function is_before(one, other)
  if one.origin ~= other.origin then
    return one.origin < other.origin
  end
  return one.verb .. one.id < other.verb .. other.id
end

local function sort_rest()
  local rest = {}
  for at = next_note, #notes do
    rest[#rest + 1] = notes[at]
  end
  table.sort(rest, is_before)
  for at, one in ipairs(rest) do
    notes[next_note + at - 1] = one
  end
end

-- A child that is let go may supersede others, which are ends of their own.
local function go_on()
  while notes[next_note] and budget > 0 do
    sort_rest()
    follow_all()
    let_free_children_go()
  end
end

-- -- What other files report ---------------------------------------------------------------------

local function ended(job)
  budget = budget - 1 - READ_COST * no_longer_asks(job.id)
  if not has_children(job.id) then
    return
  end
  if job.state == 'succeeded' then
    note('met', job.id)
  elseif job.cause then
    note('cancel', job.id, job.cause.origin, job.cause.state)
  elseif on_failed(job.pipeline_id) == 'cancel' then
    note('cancel', job.id, job.id, job.state)
  end
end

function returned(job)
  budget = budget - 1
  if was_cancelled_for_parent(job) then
    change(job, 'settled_as', '')
  end
  if has_many_parents(job.id) then
    note('ask', job.id)
  else
    for _, parent in ipairs(all_parents(job.id)) do
      asks(job.id, parent)
    end
  end
  if has_children(job.id) then
    note('revive', job.id)
  end
end

local function forget_parents(id)
  if has_many_parents(id) then
    note('part', id)
    return
  end
  for _, parent in ipairs(all_parents(id)) do
    put(parents_key(id), parent, false)
    forget_parent(id, parent)
  end
end

-- A job that never got a position is listed at its gate only by its id.
local function forget_gate(job)
  if job.position then
    return
  end
  load_columns(job, AT_GATES)
  local gate = job.train and 'train:' .. job.train or job.slot and 'slot:' .. job.slot
  if gate then
    put(store .. ':gated:' .. gate, job.id, false)
  end
end

-- Removed for good. Children do not wait for a deleted job. All children of a pruned job have finished; if one of
-- them is retried it waits, and `mend` finds that its parent is gone.
local function forgotten(job)
  forget_parents(job.id)
  forget_gate(job)
  if job.pipeline_id then
    left_pipelines[job.pipeline_id] = true
  end
  if not job.gone then
    forget_children(job.id, job.state ~= 'succeeded')
  elseif has_children(job.id) then
    note(job.state == 'succeeded' and 'met' or 'cancel', job.id, job.id, 'gone')
  end
end

local function save()
  go_on()
  for at = next_note, #notes do
    local one = notes[at]
    put(store .. ':onward', table.concat({one.verb, one.id, one.origin, one.state, one.after}, ' '), 0)
    wake('')
  end
  release_kept_parents()
  forget_empty_pipelines()
  wake_let_through()
end

-- -- Deleted by hand -----------------------------------------------------------------------------

local LONGEST_STORING = 3600000000 -- microseconds within which a caller must have stored all of a pipeline

-- The jobs that wait for a pipeline wait for all of it to be stored.
local function mend_begin(pipeline)
  local values = redis.call('HMGET', store .. ':drawn:' .. pipeline, 'is_whole', 'begun')
  if values[1] == '1' then
    note('begin', pipeline)
  elseif not values[2] then
    note('cancel', pipeline, pipeline, 'gone')
  elseif tonumber(values[2]) + LONGEST_STORING < now then
    note('undo', pipeline)
  end
end

local function mend_parent(id, child)
  local job = load_live(id)
  if job and job.state ~= 'succeeded' then
    return
  end
  put(children_key(id), child, 0) -- in case that was deleted, too
  if job then
    note('met', id)
  else
    forget_parents(id)
    note('cancel', id, id, 'gone')
  end
end

-- A job that waits, perhaps for a parent that is gone, or for a success that was never noted.
local function mend(id)
  local job = load_live(id)
  if not job then
    put(store .. ':waiting', id, false)
    forget_parents(id)
    return
  end
  local parents = unmet_parents(id)
  for _, parent in ipairs(parents) do
    if is_pipeline(parent) then
      mend_begin(parent)
    else
      mend_parent(parent, id)
    end
  end
  budget = budget - READ_COST * (#parents + 1)
  if #parents == 0 and redis.call('EXISTS', parents_key(id)) == 1 then
    budget = budget - 1
    let_go(job)
  elseif #parents == 0 then
    finish(job, 'cancelled', 'the record of its parents was deleted: retry it if it may run without them')
  end
end

return {
  ended = ended, returned = returned, forgotten = forgotten, go_on = go_on, resume = resume, save = save,
  is_more = function() return notes[next_note] or resumed == MOST_RESUMED end,
  has_budget = function() return budget > 0 end, waits = function(id) return unmet_of(id) > 0 end,
  is_waited_for = is_waited_for, add_edge = add_edge, policies = policies, note = note, mend = mend,
}
