"""What runs on a job's own host. Standard library only, Python 3.8 or newer."""
