"""The six steps of a run, for your own flows (docs/reuse.md)."""

from torchyard.tasks.steps import collect, ensure_rendezvous, preflight, submit, teardown, wait

__all__ = ["collect", "ensure_rendezvous", "preflight", "submit", "teardown", "wait"]
