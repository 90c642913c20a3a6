"""Code that runs on a job's own hosts. Standard library only, Python 3.8 or newer."""
