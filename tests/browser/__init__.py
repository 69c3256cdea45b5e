"""The ingest example in a real browser."""
