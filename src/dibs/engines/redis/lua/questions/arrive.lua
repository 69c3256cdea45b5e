-- uses: states gates
-- Store jobs that departed from another store: by id once, and by unique key once while its job lives.

local function note_of(id)
  return id .. given.store
end

local function take_in(id, list, position)
  local job = {id = id}
  loaded[id] = job
  change(job, unpack(list))
  if position then
    change(job, 'position', position)
  end
  for name, value in pairs(job) do
    job[name] = some(value)
  end
  if job.pipeline_id then
    list_in_pipeline(job)
  end
  if job.train or job.slot then
    gates().arrive(job)
  end
  if not ENDED[job.state] then
    take_key(job)
    wake(job.queue)
  elseif job.unique_until and not holder_of(job.unique_key) then
    take_key(job)
  end
  enter(job, job.state)
  new_pairs[pair_of(job)] = true
end

-- Tokens given here must be greater than all tokens of the other store.
local function raise_token(token)
  if token and token > tonumber(redis.call('GET', store .. ':token') or '0') then
    will('SET', store .. ':token', text(token))
  end
end

local function live_holder_of(unique_key)
  local holder = unique_key and holder_of(unique_key)
  return holder and not ENDED[holder.state] and holder.id
end

-- The job that has its id or its key: then it is not new here.
local function taken_by(id, unique_key, note)
  local is_known = exists(id) or note and redis.call('HEXISTS', store .. ':arrived', note_of(id)) == 1
  return is_known and id or live_holder_of(some(unique_key))
end

-- id -> position of jobs that can't keep their position on their train, all of one train together.
local function find_positions(note)
  local coming, positions = {}, {}
  for _, one in ipairs(given.jobs) do
    local job = {id = one[1]}
    for i = 1, #one[3], 2 do
      job[one[3][i]] = one[3][i + 1]
    end
    if job.train and job.position and not ENDED[job.state] and not taken_by(job.id, one[2], note) then
      coming[job.train] = coming[job.train] or {}
      table.insert(coming[job.train], {id = job.id, position = tonumber(job.position)})
    end
  end
  for train, jobs in pairs(coming) do
    gates().find_positions(train, jobs, positions)
  end
  return positions
end

-- For each: '' if it was stored, else the id of the job that has its id or its key.
local function take_in_all(note)
  local positions = find_positions(note)
  raise_token(given.token)
  return gather(given.jobs, function(one)
    local id, list = one[1], one[3]
    local holder = taken_by(id, one[2], note) or ''
    if holder == '' then
      take_in(id, list, positions[id])
      if note then
        will('HSET', store .. ':arrived', note_of(id), '1')
      end
    end
    return holder
  end)
end

local function answer_arrive()
  return take_in_all(true)
end
