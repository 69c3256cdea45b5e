-- Whoever meets the first gate has turns.lua read. Most scripts meet none, and defining what is needed there
-- takes as long as settling a job.

local read_turns, turns_read

local function turns()
  turns_read = turns_read or read_turns()
  return turns_read
end
