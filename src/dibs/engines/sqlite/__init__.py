"""SQLite: one file on this machine."""
