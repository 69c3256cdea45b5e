-- What the server reports about itself; read by a script, so that a cluster sends us to the node of this store.

local function answer_examine()
  return redis.call('INFO')
end
