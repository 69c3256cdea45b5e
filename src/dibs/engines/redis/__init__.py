"""Redis, one server or a cluster."""
