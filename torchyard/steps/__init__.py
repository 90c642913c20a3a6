"""The steps of a run, each one repeatable."""
