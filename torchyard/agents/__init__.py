"""What each node of a job runs, and what its program receives."""
