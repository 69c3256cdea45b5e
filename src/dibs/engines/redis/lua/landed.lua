-- Forget what was noted of these jobs' move, or of all that came from one store.

local function fields_of(key)
  local found = {}
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, -36) == given.store then
      found[#found + 1] = field
    end
  end
  return found
end

local function answer_landed()
  local key = store .. (given.way == 'in' and ':arrived' or ':departed')
  local noted = given.ids
  if noted == cjson.null then
    noted = fields_of(key)
  elseif given.way == 'in' then
    for i, id in ipairs(noted) do
      noted[i] = id .. given.store
    end
  end
  for _, field in ipairs(noted) do
    will('HDEL', key, field)
  end
  return {}
end
