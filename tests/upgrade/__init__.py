"""The previous code on newer tables."""
