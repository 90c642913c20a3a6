"""Which rank fails first, and its last words, while the job still runs."""
