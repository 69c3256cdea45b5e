"""Servers, connections and processes that fail, and what must survive it."""
