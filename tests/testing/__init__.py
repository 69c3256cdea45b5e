"""The helpers of `dibs.testing`."""
