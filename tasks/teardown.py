"""Remove all that a plan has created, and prove it."""

from torchyard.tasks import teardown

__all__ = ["teardown"]
