-- Remove the notes of these jobs' move, or of all jobs that came from one store.

local function answer_landed()
  local key = store .. (given.way == 'in' and ':arrived' or ':departed')
  local fields = given.ids
  if fields == cjson.null then
    fields = gather(redis.call('HKEYS', key), function(field)
      return string.sub(field, -36) == given.store and field
    end)
  elseif given.way == 'in' then
    fields = gather(given.ids, function(id) return id .. given.store end)
  end
  for _, field in ipairs(fields) do
    will('HDEL', key, field)
  end
  return {}
end
