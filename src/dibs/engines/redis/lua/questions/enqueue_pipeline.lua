-- uses: states gates pipelines enqueue
-- Store the jobs of a pipeline, some of which wait for others of them.
--
-- A large pipeline comes in pieces. Then all of its jobs wait until the last piece says that it `is_whole`: jobs
-- without a parent wait for the pipeline. If that piece never comes, `mend` removes them (`undo` of pipelines.lua).

local id, name, on_failed = unpack(given.pipeline)
local drawn = store .. ':drawn:' .. id

local function write_pipeline(begun)
  will('HSET', drawn, 'name', name, 'on_failed', on_failed, 'is_whole', given.is_whole and '1' or '', 'begun', begun)
  put(store .. ':drawn', id, 0)
  pipelines().policies[id] = on_failed
end

-- Returns the set of all children.
local function add_edges()
  local waits = {}
  for _, edge in ipairs(given.edges) do
    local child, order, parent = unpack(edge)
    pipelines().add_edge(parent, child, order)
    waits[child] = true
  end
  return waits
end

local function is_any_known()
  return gather(given.jobs, function(new) return exists(new[ID]) end)[1]
end

local function answer_stored(stored)
  local rows = {text(now)}
  append(rows, gather(stored, function(job) return {job.state, job.run_at} end))
  wake_queues()
  return rows
end

local function store_whole()
  write_pipeline(text(now))
  local waits = add_edges()
  local stored = gather(given.jobs, function(new)
    return waits[new[ID]] and write_new(new, true) or store_new(new)
  end)
  follow_up()
  return answer_stored(stored)
end

-- A piece that is stored already is left as it is.
local function store_piece(begun)
  write_pipeline(begun or text(now))
  if is_any_known() then
    return answer_stored(gather(given.jobs, function(new)
      return load(new[ID]) or {state = 'blocked', run_at = text(now)}
    end))
  end
  add_edges()
  local stored = gather(given.jobs, function(new) return write_new(new, true) end)
  if given.is_whole then
    pipelines().note('begin', id)
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
