"""The six steps of an attempt, in their order."""

from collections.abc import Callable
from typing import NamedTuple

from torchyard.model.requirements import Check
from torchyard.model.run import Collected, Handle, Outcome
from torchyard.steps.collect import collect
from torchyard.steps.preflight import preflight
from torchyard.steps.rendezvous import ensure_rendezvous
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown
from torchyard.steps.wait import wait


class StepFunctions(NamedTuple):
    """The six steps of an attempt. Another orchestrator gives its own: Prefect its tasks."""

    preflight: Callable[..., tuple[Check, ...]] = preflight
    rendezvous: Callable[..., str | None] = ensure_rendezvous
    submit: Callable[..., Handle] = submit
    wait: Callable[..., Outcome] = wait
    collect: Callable[..., Collected] = collect
    teardown: Callable[..., tuple[str, ...]] = teardown
