"""The outbox: messages that leave with the caller's transaction."""
