"""Submit a plan"s job, or attach to it."""

from torchyard.tasks import submit

__all__ = ["submit"]
