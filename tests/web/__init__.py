"""The web API: routes, permissions, streams."""
