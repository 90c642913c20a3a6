"""From facts to a sentence: the state of a job, and why it failed or makes no progress."""
