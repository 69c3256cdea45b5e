"""What `dibs demo` and `dibs verify` share: processes that claim jobs, their records, and the judge."""
