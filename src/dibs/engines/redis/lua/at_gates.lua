-- Whoever meets the first gate has turns.lua read, whoever meets the first step of a drawn pipeline steps.lua. Most
-- scripts meet neither, and defining what is needed there takes as long as settling a job.

local read_turns, turns_read, read_steps, steps_read

local function turns()
  turns_read = turns_read or read_turns()
  return turns_read
end

local function steps()
  steps_read = steps_read or read_steps()
  return steps_read
end

-- Whether others may wait for this job, or it for others: the version of its pipeline's id tells (8, as byte 56).
local function is_step(job)
  return job.pipeline_id and string.byte(job.pipeline_id, 15) == 56
end

-- A reply, and whether there is more to do than one script may: then somebody has to ask `go_on`.
local function with_rest(reply)
  if reply.err then
    return reply
  end
  return {reply, steps_read and steps_read.is_more() and 1 or 0}
end
