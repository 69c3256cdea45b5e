-- A job that is removed for good leaves nothing behind.

local function forget(job)
  if job.position then
    turns().forget(job)
  end
  leave(job)
  free_key(job)
  if job.pipeline_id then
    place(store .. ':pipeline:' .. job.pipeline_id, job.id, false)
  end
  if is_step(job) then
    steps().forgotten(job)
  end
  left_lines[line_of(job)] = true
  will('DEL', job_key(job.id))
end
