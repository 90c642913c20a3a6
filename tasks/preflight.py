"""Check that a plan can run: all findings at once, each with a remedy."""

from torchyard.tasks import preflight

__all__ = ["preflight"]
