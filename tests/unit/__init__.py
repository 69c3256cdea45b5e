"""Values and small parts, without a store."""
