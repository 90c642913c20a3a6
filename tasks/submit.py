"""Submit the job of a plan, or attach to it."""

from torchyard.tasks import submit

__all__ = ["submit"]
