"""The network that a job used, read from the log lines of NCCL."""
