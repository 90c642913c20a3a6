"""A run as Prefect sees it."""
