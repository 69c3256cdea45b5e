-- uses: at_gates places moves turns steps enqueue
-- Store the jobs of a pipeline, some of which wait for others of them.
--
-- A large one comes in pieces. Then all of its jobs wait until the last piece says that it `is_whole`: those that wait
-- for nobody else wait for the pipeline. If that never comes, a sweep takes them away again (`undo` of steps.lua).

local id, name, on_failed = unpack(given.pipeline)
local drawn = store .. ':drawn:' .. id

local function note_pipeline(begun)
  will('HSET', drawn, 'name', name, 'on_failed', on_failed, 'is_whole', given.is_whole and '1' or '', 'begun', begun)
  place(store .. ':drawn', id, 0)
  steps().policies[id] = on_failed
end

-- Answers who waits for somebody.
local function note_edges()
  local waits = {}
  for _, edge in ipairs(given.edges) do
    local child, order, parent = unpack(edge)
    steps().add_edge(parent, child, order)
    waits[child] = true
  end
  return waits
end

local function is_any_known()
  for _, new in ipairs(given.jobs) do
    if exists(new[ID]) then
      return true
    end
  end
  return false
end

local function answer_stored(stored)
  local answers = {text(now)}
  for i, job in ipairs(stored) do
    answers[i + 1] = {job.state, job.run_at}
  end
  for _, queue in ipairs(given.wake) do
    wake(queue)
  end
  return answers
end

local function store_whole()
  note_pipeline(text(now))
  local waits, stored = note_edges(), {}
  for i, new in ipairs(given.jobs) do
    stored[i] = waits[new[ID]] and write_new(new, true) or store_new(new)
  end
  steps().go_on()
  if turns_read then
    turns_read.open_gates()
  end
  return answer_stored(stored)
end

-- A piece that came before is left as it is.
local function store_piece(begun)
  note_pipeline(begun or text(now))
  if is_any_known() then
    local stored = {}
    for i, new in ipairs(given.jobs) do
      stored[i] = load(new[ID]) or {state = 'blocked', run_at = text(now)}
    end
    return answer_stored(stored)
  end
  note_edges()
  local stored = {}
  for i, new in ipairs(given.jobs) do
    stored[i] = write_new(new, true)
  end
  if given.is_whole then
    steps().note('begin', id)
  end
  return answer_stored(stored)
end

-- Nothing for a pipeline that is known; else as `enqueue`.
local function answer_enqueue_pipeline()
  local values = redis.call('HMGET', drawn, 'is_whole', 'begun')
  if values[1] == '1' then
    return {}
  end
  if not given.is_piece then
    return is_any_known() and {} or store_whole()
  end
  return store_piece(values[2])
end
