"""The only way to an API server."""
