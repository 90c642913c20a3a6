"""Check that a plan can run: all findings together, each with a remedy."""

from torchyard.tasks import preflight

__all__ = ["preflight"]
