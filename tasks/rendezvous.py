"""Start and probe the rendezvous store of a plan, if it has one."""

from torchyard.tasks import ensure_rendezvous

__all__ = ["ensure_rendezvous"]
