"""One run from its beginning to its end: the runner, its folder, its report, and resuming it."""
