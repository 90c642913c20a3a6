"""Remove everything that a plan has created, and verify that nothing remains."""

from torchyard.tasks import teardown

__all__ = ["teardown"]
