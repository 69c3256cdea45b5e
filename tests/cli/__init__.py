"""The command line as people type it: commands, the demo, verify, top."""
