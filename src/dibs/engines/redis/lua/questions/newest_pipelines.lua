-- Ids of a page of the pipelines that have jobs, newest first.

local function answer_newest_pipelines()
  return redis.call('ZREVRANGEBYLEX', store .. ':pipelines', '(' .. given.after, '-', 'LIMIT', 0, given.limit)
end
