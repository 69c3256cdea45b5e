-- uses: at_gates places moves turns
-- Let the next of a held train go.

local function answer_release_train()
  local gate = turns().gate_named('train:' .. given.name)
  local was_held = gate.held_by and 1 or 0
  if was_held == 0 and not turns().first_in(gate, turns().members_key(gate)) then
    return {}
  end
  if gate.held_by then
    turns().let_go(gate)
  end
  turns().touch(gate)
  return {was_held}
end
