-- The beginning of every script: the clock, plain values, and the writes that the script collects.
--
-- Redis rolls nothing back when a script fails half-way. So a script only *collects* its writes while it reads and
-- decides, and commit.lua makes them after the last thing that can fail. A file of questions/ has the answer to one
-- question in its function `answer_…`; its first line names the files of lib/ or questions/ that it uses.
--
-- Keys, all behind the hash tag of the store, so that they are on one node of a cluster. PAIR is a queue and a kind:
--   job:ID              hash, a column per field; '' or no field is null
--   ready:PAIR          jobs that can be claimed, in the order of claiming
--   scheduled, leases   ids by run_at, by lease_until
--   ended:STATE         ids by finished_at
--   kept                finished jobs that may not be pruned yet, by the time when they may
--   ids:STATE:PAIR      ids of all jobs by state, for finding and counting
--   pipeline:ID         ids of the jobs of a pipeline
--   pipelines           ids of all pipelines that have jobs
--   lines, busy         set of all pairs that have jobs; of the pairs that have ready jobs
--   unique              hash, unique key -> id of the job that has it
--   gate:SORT:NAME      hash of a train or slot: last_position, and held_by, the job for which an operator is needed
--   gates, held         'train:NAME' and 'slot:NAME' of all gates that have jobs; names of the trains that are held
--   offers              slots by the time when the offer of their ready job ends
--   members:SORT:NAME   live jobs of a train or slot, in the order of the gate
--   line:S, going:S     of the members of a slot: the blocked ones; the ready and running ones
--   started:S           jobs of a slot that have run, by their token
--   gated:SORT:NAME     ids of all jobs of a train or slot
--   drawn, drawn:ID     ids of pipelines with jobs that wait for parents; a hash for each: name, on_failed, and
--                       whether all of it is stored
--   waiting             jobs that wait for parents, and have no position at a gate yet
--   parents:ID          the parents of a job, by the order given, negative once the parent has succeeded
--   children:ID         the children of a job; asking:ID, the children that have not finished
--   onward              what the ends of jobs mean for their children, where one script could not do all of it
--   token               the counter of all claims
--   settings, paused    set of queues that have a setting; of the queues that are paused
--   limits              hash, queue -> most running
--   schedules           hash, schedule -> its last tick
--   schedules:about     hash, schedule -> a text that no script reads
--   schedules:revision  hash, schedule -> a number, another one after each change of it
--   schedules:count     how many changes there were of any schedule
--   refusals:ID         list of refused writes to a job
--   minutes:W:M         hash, queue, kind and column -> count, of W minutes from M on
--   identity            the id of this store
--   departed            hash, id -> [store it left for, the job's fields], until it has landed there
--   arrived             hash, id and store it came from -> 1, until that store knows
--   workers, worker:X   names by the time of their last heartbeat, and a hash for each
-- and a channel, `wake`, for hints.

local store = KEYS[1]
local given = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local LIVE = {'scheduled', 'blocked', 'ready', 'running'}
local STATES = {'scheduled', 'blocked', 'ready', 'running', 'succeeded', 'failed', 'cancelled'}
local ENDED = {succeeded = true, failed = true, cancelled = true}

-- -- Values --------------------------------------------------------------------------------------

-- Lua would write 1.7e+15.
local function text(number)
  return string.format('%.0f', number)
end

-- nil for everything that stands for null.
local function some(value)
  if value == cjson.null or value == '' or value == false then
    return nil
  end
  return value
end

local function names(list)
  local found = {}
  for _, name in ipairs(list) do
    found[name] = true
  end
  return found
end

local function append(list, more)
  local size = #list
  for i = 1, #more do
    list[size + i] = more[i]
  end
end

-- What `f` returns for each, without nil and false.
local function gather(list, f)
  local found = {}
  for _, one in ipairs(list) do
    found[#found + 1] = f(one) or nil
  end
  return found
end

-- Seconds and microseconds of a time: from the year 2255 on it is too large for a double.
local function parts(micros)
  local number = tonumber(micros)
  if number < 9007199254740992 then
    local seconds = math.floor(number / 1000000)
    return seconds, number - seconds * 1000000
  end
  return tonumber(string.sub(micros, 1, -7)), tonumber(string.sub(micros, -6))
end

local function state_by_time(run_at)
  return tonumber(run_at) <= now and 'ready' or 'scheduled'
end

-- -- Collected writes ----------------------------------------------------------------------------

local scores, score_keys = {}, {} -- sorted sets: key -> member -> score, or false to remove it
local fields, changed_jobs = {}, {} -- hashes: job -> its new fields, one after the other
local commands = {} -- anything else
local keys_taken = {} -- unique keys: key -> id, or false once it is free
local busy_pairs, new_pairs, left_pairs, left_pipelines, wakes = {}, {}, {}, {}, {}
local let_through = {} -- jobs that their gate or last parent made ready; an exchange may claim them at once
local freed = {} -- queue -> running jobs that this script ends

-- Every collected write passes here; tests let it fail at each in turn.
local function collect() end

local function put(set, member, score)
  collect()
  local members = scores[set]
  if not members then
    members = {}
    scores[set] = members
    score_keys[#score_keys + 1] = set
  end
  members[member] = score
end

-- Fields and values, one after the other; a job that is not loaded need only have its id.
local function write_fields(job, list)
  collect()
  if fields[job] then
    append(fields[job], list)
  else
    fields[job] = list
    changed_jobs[#changed_jobs + 1] = job
  end
end

local function change(job, ...)
  local list = {...}
  for i = 1, #list, 2 do
    job[list[i]] = list[i + 1]
  end
  write_fields(job, list)
end

local function will(...)
  collect()
  commands[#commands + 1] = {...}
end

local function wake(queue)
  wakes[queue] = true
end
