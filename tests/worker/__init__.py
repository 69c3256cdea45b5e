"""The worker: claim, run, settle, all day."""
