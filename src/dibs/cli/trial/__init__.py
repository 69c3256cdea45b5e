"""What `dibs demo` and `dibs verify` share: processes that claim jobs, and their records."""
