"""The reference engine: everything in this process."""
