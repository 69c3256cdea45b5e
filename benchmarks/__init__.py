"""Benchmarks of dibs beside the same statements sent bare, in one run."""
