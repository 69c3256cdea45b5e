"""The stores: each engine has an answer to every question of `dibs.operations.questions`."""
