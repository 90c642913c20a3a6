"""Checks of a cluster before a job is submitted: one module per kind of requirement."""
