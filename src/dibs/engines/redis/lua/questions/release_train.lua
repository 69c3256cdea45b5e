-- uses: states gates
-- Release a held train.

local function answer_release_train()
  local gate = gates().gate_named('train:' .. given.name)
  local was_held = gate.held_by and 1 or 0
  if gate.held_by then
    gates().release(gate)
  elseif not gates().head_of(gate) then
    return {}
  end
  gates().touch(gate)
  return {was_held}
end
