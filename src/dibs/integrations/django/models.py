"""No models. Django sends `post_migrate` only to an app that has this module."""
