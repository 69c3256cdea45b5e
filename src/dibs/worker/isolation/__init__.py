"""Jobs with `isolation="process"`: a pool of processes, each running one job at a time."""
