"""The commands of `dibs`, one module each."""
