"""`dibs demo`: several processes share jobs on a SQLite file, and one is killed."""
