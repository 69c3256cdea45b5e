-- uses: states gates pipelines
-- Take back or end jobs after their lease ran out: the rule is `swept` of dibs.jobs.states.

local function state_after_loss(job)
  local has_attempts = tonumber(job.attempts) < tonumber(job.max_attempts)
  return job.cancel_reason and 'cancelled' or has_attempts and 'ready' or 'failed'
end

-- The sandbox has no os.date: days since 1970 as a date of the calendar (Howard Hinnant's civil_from_days).
local function date_of(days)
  local z = days + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  return yoe + era * 400 + (month <= 2 and 1 or 0), month, doy - math.floor((153 * mp + 2) / 5) + 1
end

local function clock_text(micros)
  local seconds = math.floor(micros / 1000000)
  local days = math.floor(seconds / 86400)
  local rest = seconds - days * 86400
  local year, month, day = date_of(days)
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%06dZ', year, month, day, math.floor(rest / 3600),
    math.floor(rest % 3600 / 60), rest % 60, micros - seconds * 1000000)
end

local function errors_with_loss(job)
  local loss = string.format('{"attempt":%s,"token":%s,"at":"%s","worker":%s,"type":"LeaseLost","message":%s}',
    job.attempts, job.token, clock_text(now), cjson.encode(job.worker), cjson.encode(given.message))
  local before = redis.call('HGET', job_key(job.id), 'errors') or '[]'
  return string.sub(before, 1, -2) .. (before == '[]' and '' or ',') .. loss .. ']'
end

local function take_back(job)
  local state = state_after_loss(job)
  local answer = {job.id, job.kind, job.queue, job.worker, job.token, job.attempts, state}
  change(job, 'errors', errors_with_loss(job))
  if ENDED[state] then
    finish(job, state, some(cancel_reason(job) or ''))
  else
    back_without_holder(job, state)
    wake('')
  end
  return answer
end

local function answer_sweep()
  if redis.call('EXISTS', store .. ':onward') == 1 then
    pipelines().resume()
  end
  local expired = redis.call('ZRANGEBYSCORE', store .. ':leases', '-inf', now, 'LIMIT', 0, given.limit)
  return gather(expired, function(id)
    local job = load(id)
    if job then
      return take_back(job)
    end
    put(store .. ':leases', id, false)
  end)
end
