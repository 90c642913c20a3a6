"""The queue that a job waits in, read from the objects of each kind of queue."""
