"""Claims of rows of the user's own tables."""
