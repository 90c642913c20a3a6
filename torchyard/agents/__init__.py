"""The command of each node of a job, and the environment of its program."""
