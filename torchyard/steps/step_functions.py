"""The six steps of an attempt, in order."""

from collections.abc import Callable
from typing import NamedTuple

from torchyard.model.finding import Finding
from torchyard.model.run import Collected, Handle, Outcome
from torchyard.steps.collect import collect
from torchyard.steps.preflight import preflight
from torchyard.steps.rendezvous import ensure_rendezvous
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown
from torchyard.steps.wait import wait


class StepFunctions(NamedTuple):
    """The six steps of an attempt. Another orchestrator passes its own functions: Prefect passes its tasks.

    preflight     check what the plan needs; all findings, or PreflightError
    rendezvous    start or probe the rendezvous store; its URL, or None
    submit        start or adopt the job
    wait          watch the job until it has ended
    collect       read its logs: metrics and failure
    teardown      remove everything; what could not be removed
    """

    preflight: Callable[..., tuple[Finding, ...]] = preflight
    rendezvous: Callable[..., str | None] = ensure_rendezvous
    submit: Callable[..., Handle] = submit
    wait: Callable[..., Outcome] = wait
    collect: Callable[..., Collected] = collect
    teardown: Callable[..., tuple[str, ...]] = teardown
