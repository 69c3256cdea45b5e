"""The commands of `dibs`."""
