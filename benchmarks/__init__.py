"""What dibs costs, beside the same statements sent bare, in one run."""
