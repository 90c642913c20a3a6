"""Watch a job until it has ended."""

from torchyard.tasks import wait

__all__ = ["wait"]
