"""There are none. Django tells an app that its tables were migrated only if it has this module."""
