-- What every script begins with: the clock, and a plan of what will be written.
--
-- Redis undoes nothing when a script fails half-way. So a script only *plans* its writes while it reads and
-- decides, and commit.lua makes them after the last thing that can go wrong. A file of this folder answers
-- one question in its function `answer_…`; `-- uses:` in its first line names the files it builds on. All build
-- on places.lua, a job and where it stands; those who end jobs or put them back on turns.lua, steps.lua and moves.lua.
--
-- Keys, all behind the hash tag of the store, so that they live on one node of a cluster:
--   job:ID              hash, a column per field; '' or no field is null
--   ready:LINE          what can be claimed, in the order of claiming; a line is a queue and a kind
--   scheduled, leases   ids by run_at, by lease_until
--   ended:STATE         ids by finished_at
--   kept                finished jobs that must not be pruned, by the time when they may
--   ids:STATE:LINE      ids of every job by state, for finding and counting
--   pipeline:ID         ids of a pipeline's jobs
--   lines, busy         set of all lines that have jobs; of those where something is ready
--   unique              hash, unique key -> id of the job that has it
--   gate:SORT:NAME      hash of a train or slot: last_position, and held_by, whom it waits for a person with
--   gates, held         'train:NAME' and 'slot:NAME' of all who have jobs; names of the trains that are held
--   offers              slots by the time until which their ready job may let others wait
--   members:SORT:NAME   live jobs of a train or slot, by their turn
--   line:S, going:S     of a slot's: those blocked; those ready or running
--   started:S           jobs of a slot that ran, by their token
--   gated:SORT:NAME     ids of all jobs of a train or slot
--   drawn, drawn:ID     ids of the pipelines whose jobs wait for each other; a hash for each: name, on_failed, and
--                       whether all of it is stored
--   waiting             jobs that wait for others, and have no place at a gate yet
--   parents:ID          whom a job waits for, by the order given, negative once that one has succeeded
--   children:ID         who waits for a job, or has; asking:ID, those of them that have not ended
--   onward              what ends of jobs mean to those after them, and one script had no room for
--   token               the counter of all claims
--   settings, paused    set of queues that somebody set, of those that are paused
--   limits              hash, queue -> most running
--   schedules           hash, schedule -> its last tick
--   identity            which store this is
--   departed            hash, id -> [store it left for, the job's fields], until it is known to be there
--   arrived             hash, id and store it came from -> 1, until that store knows
--   workers, worker:X   names by the time they were last seen, and a hash for each
-- and a channel, `wake`, that tells the queues where there is something new.

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

-- Seconds and microseconds of a time: in the year 2255 it grows out of what a number holds exactly.
local function parts(moment)
  local number = tonumber(moment)
  if number < 9007199254740992 then
    local seconds = math.floor(number / 1000000)
    return seconds, number - seconds * 1000000
  end
  return tonumber(string.sub(moment, 1, -7)), tonumber(string.sub(moment, -6))
end

-- -- What is planned -----------------------------------------------------------------------------

local scores, score_keys = {}, {} -- sorted sets: key -> member -> score, or false to take it out
local fields, changed_jobs = {}, {} -- hashes: job -> its new fields, one after the other
local commands = {} -- anything else
local keys_taken = {} -- unique keys: key -> id, or false once it is free
local busy_lines, new_lines, left_lines, wakes = {}, {}, {}, {}
local let_through = {} -- jobs whose gate or last parent made them ready; an exchange may claim them at once
local freed = {} -- running jobs of a queue that this script ends

-- Every planned write passes here; tests let it fail at each in turn.
local function plan() end

local function place(set, member, score)
  plan()
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
  plan()
  local before = fields[job]
  if not before then
    fields[job] = list
    changed_jobs[#changed_jobs + 1] = job
    return
  end
  local size = #before
  for i = 1, #list do
    before[size + i] = list[i]
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
  plan()
  commands[#commands + 1] = {...}
end

local function wake(queue)
  wakes[queue] = true
end
