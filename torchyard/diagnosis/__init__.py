"""From facts to a sentence: how a job is, and why it failed or makes no progress."""
