-- The id of this store; one that has none yet takes the id that is given.

local function answer_identify()
  local id = redis.call('GET', store .. ':identity')
  if not id and some(given.new) then
    id = given.new
    will('SETNX', store .. ':identity', id)
  end
  return {id or nil}
end
