"""The tests of dibs: what proves each promise, and the helpers (`support`) that the folders share."""
