"""Read the logs of an ended job: its metrics, its network, and why it failed."""

from torchyard.tasks import collect

__all__ = ["collect"]
