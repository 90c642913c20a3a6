"""One file per scheduler: pure functions from a profile to a plan, and from observations to a status."""
