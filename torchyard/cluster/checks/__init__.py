"""What must be true in a cluster before a job is submitted."""
