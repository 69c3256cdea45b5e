"""What the SQL engines share: blocks, gates, pipelines, moves, migrations, the caller's connections."""
