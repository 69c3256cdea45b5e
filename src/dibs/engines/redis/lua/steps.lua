-- uses: edges
-- What the end, return or removal of a job means to those that wait for it: the rules of ADR 18, spelled out in
-- `memory/steps.py`. With the file it uses this is a module, read by the first who is a step (at_gates.lua).
--
-- A move only notes what follows from it; `go_on` then does that, job by job, as long as the budget lasts. What is
-- left is stored in `onward`, for `go_on` of the next script: of who asked, or of the next sweep if that one died.
-- Every note is judged anew when its turn comes, so it does no harm if the world has changed in between.

local budget = 500 -- jobs that one script moves; to look at one, or at an edge, counts as a tenth
local LOOK = 0.1
local queue, next_one, seen = {}, 1, {}
local MOST_RESUMED, resumed = 100, 0
local policies = {} -- on_failed of pipelines that are just being made

-- What follows from an end comes before the next end: who is after two that ended is cancelled for the first.
local function place_in_queue(id, origin)
  for at = #queue, id == origin and #queue + 1 or next_one, -1 do
    if queue[at].origin == origin then
      return at + 1
    end
  end
  return #queue + 1
end

-- `id`: whose children are concerned. `origin` ended as `state` (or is gone), and they are cancelled for that.
local function note(verb, id, origin, state)
  origin, state = origin or id, state or '-'
  local key = table.concat({verb, id, origin, state}, ' ')
  if not seen[key] then
    seen[key] = true
    local one = {verb = verb, id = id, origin = origin, state = state, after = ''}
    table.insert(queue, place_in_queue(id, origin), one)
  end
end

local function text_of(one)
  return table.concat({one.verb, one.id, one.origin, one.state, one.after}, ' ')
end

-- What earlier scripts left.
local function resume()
  local texts = redis.call('ZRANGE', store .. ':onward', 0, MOST_RESUMED - 1)
  resumed = #texts
  for _, text in ipairs(texts) do
    local verb, id, origin, state, after = string.match(text, '^(%S+) (%S+) (%S+) (%S+) (%S*)$')
    seen[table.concat({verb, id, origin, state}, ' ')] = true
    queue[#queue + 1] = {verb = verb, id = id, origin = origin, state = state, after = after, text = text}
  end
end

local function load_step(id)
  local job = load(id)
  return job and not job.gone and job
end

local function is_waiting(job)
  return job.state == 'blocked' and not job.position
end

local function on_failed(pipeline)
  return policies[pipeline] or redis.call('HGET', store .. ':drawn:' .. pipeline, 'on_failed')
end

-- -- Moves ---------------------------------------------------------------------------------------

-- Everybody it waited for has succeeded: it gets its place, like a new job.
local function set_off(job)
  load_columns(job, AT_GATES)
  load_columns(job, {'slot_policy'})
  leave(job)
  if job.slot_policy == 'replace' then
    turns().supersede(job.slot, job.id)
  end
  local has_gate = job.train or job.slot
  local state = has_gate and turns().join(job, job.slot_policy) or tonumber(job.run_at) <= now and 'ready' or 'scheduled'
  change(job, 'state', state)
  enter(job, state)
  if state == 'ready' then
    let_through[#let_through + 1] = job
  end
end

local MESSAGES = {failed = DOOMED_AS_FAILED, cancelled = DOOMED_AS_CANCELLED, gone = DOOMED_AS_GONE}

local function doom(job, cause)
  job.cause = cause
  change(job, 'settled_as', 'parent')
  finish(job, 'cancelled', string.format(MESSAGES[cause.state], cause.origin))
end

local function was_doomed(job)
  return (job.settled_as or redis.call('HGET', job_key(job.id), 'settled_as')) == 'parent'
end

local function is_doomed(job)
  return job.state == 'cancelled' and was_doomed(job)
end

-- Whether all who have not succeeded yet still may.
local function may_wait(id)
  for _, parent in ipairs(unmet_parents(id)) do
    local state = state_of(parent)
    budget = budget - LOOK
    if not state or ENDED[state] then
      return false
    end
  end
  return true
end

-- -- What follows, for one child after the other -------------------------------------------------

local FOLLOWS, returned = {}, nil
local let_go = {} -- who waits for nobody any more, and has no place yet

-- Those who go together take their places in their own order, whosever end it was that let them go.
local function let_go_if_free(id)
  local child = load_step(id)
  if child and is_waiting(child) and unmet_of(id) == 0 then
    budget = budget - 1
    let_go[#let_go + 1] = child
  end
end

local function set_off_all()
  table.sort(let_go, function(one, other) return one.id < other.id end)
  local going = let_go
  let_go = {}
  for _, child in ipairs(going) do
    if is_waiting(child) then
      set_off(child)
    end
  end
end

function FOLLOWS.met(one, id)
  if meet(id, one.id) then
    let_go_if_free(id)
  end
end

-- All of a pipeline is stored: those who wait for nobody else may go.
function FOLLOWS.begin(one, id)
  forget_edge(one.id, id)
  let_go_if_free(id)
end

function FOLLOWS.doom(one, id)
  if one.state == 'gone' and one.id == one.origin then
    forget_edge(one.id, id)
  end
  local child = load_step(id)
  if child and is_waiting(child) then
    doom(child, one)
  elseif child and ENDED[child.state] and child.state ~= 'succeeded' and has_children(id) then
    note('doom', id, one.origin, one.state)
  end
end

function FOLLOWS.revive(_, id)
  local child = load_step(id)
  if not child or not is_doomed(child) or not may_wait(id) then
    return
  end
  leave(child)
  begin_anew(child, 'blocked', child.run_at)
  returned(child)
  let_go_if_free(id)
end

-- It runs again, or may, and then asks for their results.
function FOLLOWS.ask(one, parent)
  asks(one.id, parent)
end

-- It is gone, and its parents are too many to be told at once.
function FOLLOWS.part(one, parent)
  forget_parent(one.id, parent)
end

-- A pipeline of which never all was stored: who made it is long gone.
function FOLLOWS.undo(_, id)
  local job = load_step(id)
  if job then
    budget = budget - 1
    forget(job)
  end
end

-- Whether what was noted is still so.
local function still_holds(one)
  local job = load_step(one.id)
  if one.verb == 'doom' then
    local is_gone = one.state == 'gone' and one.id == one.origin
    return is_gone and not job or job and ENDED[job.state] and job.state ~= 'succeeded'
  end
  if one.verb == 'part' then
    return not job
  end
  local is_back = job and (not ENDED[job.state] or job.state == 'succeeded')
  return one.verb ~= 'revive' and one.verb ~= 'ask' or is_back
end

local function concerned(one)
  if one.verb == 'ask' or one.verb == 'part' then
    local first = tonumber(one.after) or 0
    return redis.call('ZRANGE', parents_key(one.id), first, first + PIECE - 1)
  end
  local set = one.verb == 'undo' and store .. ':pipeline:' .. one.id or children_key(one.id)
  return members_after(set, one.after)
end

-- Where to go on after this one: parents are not in the order of their ids.
local function after(one, id)
  return (one.verb == 'ask' or one.verb == 'part') and (tonumber(one.after) or 0) + 1 or id
end

-- True once all whom it concerns were moved.
local function follow(one)
  while budget > 0 do
    local ids = concerned(one)
    for _, id in ipairs(ids) do
      if budget <= 0 then
        return false
      end
      FOLLOWS[one.verb](one, id)
      one.after, budget = after(one, id), budget - LOOK
    end
    if #ids == 0 then
      return true
    end
  end
  return false
end

-- Of those who ended in this script the older first; `note` keeps what follows from each together.
local function is_before(one, other)
  if one.origin ~= other.origin then
    return one.origin < other.origin
  end
  return one.verb .. one.id < other.verb .. other.id
end

local function follow_all()
  while queue[next_one] and budget > 0 do
    local one = queue[next_one]
    local holds = still_holds(one)
    local is_done = not holds or follow(one)
    if one.text then
      place(store .. ':onward', one.text, false)
      one.text = nil
    end
    if not is_done then
      return
    end
    if holds and one.verb == 'part' then
      will('DEL', parents_key(one.id))
    elseif holds and one.id == one.origin and not load_step(one.id) then
      forget_children(one.id)
    end
    next_one = next_one + 1
  end
end

local function sort_rest()
  local rest = {}
  for at = next_one, #queue do
    rest[#rest + 1] = queue[at]
  end
  table.sort(rest, is_before)
  for at, one in ipairs(rest) do
    queue[next_one + at - 1] = one
  end
end

-- Who takes a place may end others, who are superseded.
local function go_on()
  while queue[next_one] and budget > 0 do
    sort_rest()
    follow_all()
    set_off_all()
  end
end

-- -- What the other scripts tell -----------------------------------------------------------------

local function ended(job)
  budget = budget - 1 - LOOK * no_longer_asks(job.id)
  if not has_children(job.id) then
    return
  end
  if job.state == 'succeeded' then
    note('met', job.id)
  elseif job.cause then
    note('doom', job.id, job.cause.origin, job.cause.state)
  elseif on_failed(job.pipeline_id) == 'cancel' then
    note('doom', job.id, job.id, job.state)
  end
end

function returned(job)
  budget = budget - 1
  if was_doomed(job) then
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
    place(parents_key(id), parent, false)
    forget_parent(id, parent)
  end
end

-- One that never came to its place is only listed there.
local function forget_gate(job)
  if job.position then
    return
  end
  load_columns(job, AT_GATES)
  local gate = job.train and 'train:' .. job.train or job.slot and 'slot:' .. job.slot
  if gate then
    place(store .. ':gated:' .. gate, job.id, false)
  end
end

-- Removed for good. Nobody waits for who was deleted. Of who was pruned, all after it have ended; if one of them is
-- retried it waits, and `mend` finds that there is nobody to wait for.
local function forgotten(job)
  forget_parents(job.id)
  forget_gate(job)
  if job.pipeline_id then
    left_pipelines[job.pipeline_id] = true
  end
  if not job.gone then
    forget_children(job.id, job.state ~= 'succeeded')
  elseif has_children(job.id) then
    note(job.state == 'succeeded' and 'met' or 'doom', job.id, job.id, 'gone')
  end
end

local function save()
  go_on()
  for at = next_one, #queue do
    place(store .. ':onward', text_of(queue[at]), 0)
    wake('')
  end
  let_parents_go()
  forget_empty_pipelines()
  for _, job in ipairs(let_through) do
    if not job.is_claimed then
      wake(job.queue)
    end
  end
end

local function is_more()
  return queue[next_one] or resumed == MOST_RESUMED
end

-- -- Deleted by hand -----------------------------------------------------------------------------

local PATIENCE_WITH_MAKERS = 3600000000 -- microseconds in which somebody who stores a pipeline must have done so

-- Who waits for a pipeline waits for all of it to be stored.
local function mend_begin(pipeline)
  local values = redis.call('HMGET', store .. ':drawn:' .. pipeline, 'is_whole', 'begun')
  if values[1] == '1' then
    note('begin', pipeline)
  elseif not values[2] then
    note('doom', pipeline, pipeline, 'gone')
  elseif tonumber(values[2]) + PATIENCE_WITH_MAKERS < now then
    note('undo', pipeline)
  end
end

local function mend_parent(id, child)
  local job = load_step(id)
  if job and job.state ~= 'succeeded' then
    return
  end
  place(children_key(id), child, 0) -- in case that was deleted, too
  if job then
    note('met', id)
  else
    forget_parents(id)
    note('doom', id, id, 'gone')
  end
end

-- A job that waits, and perhaps for somebody who is gone, or who has told nobody of its success.
local function mend(id)
  local job = load_step(id)
  if not job then
    drop_ghost(store .. ':waiting', id)
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
  budget = budget - LOOK * (#parents + 1)
  if #parents == 0 and redis.call('EXISTS', parents_key(id)) == 1 then
    budget = budget - 1
    set_off(job)
  elseif #parents == 0 then
    finish(job, 'cancelled', 'nobody knows any more which jobs were before it: retry it if it may go without them')
  end
end

local function has_budget()
  return budget > 0
end

return {
  ended = ended, returned = returned, forgotten = forgotten, go_on = go_on, resume = resume, save = save,
  is_more = is_more, is_waited_for = is_waited_for, waits = function(id) return unmet_of(id) > 0 end,
  add_edge = add_edge, policies = policies, note = note, mend = mend, has_budget = has_budget,
}
