"""The steps of a run, and whole runs, for your own flows (docs/reuse.md). Importing this package imports Prefect.

Example:
    from torchyard.tasks import train_profile

    @flow
    def nightly() -> None:
        if train_profile("digits-local").metrics["accuracy"] > 0.9:
            ...
"""

from torchyard.loading.profile import load_profile
from torchyard.model.errors import (
    ClusterError,
    HostError,
    PreflightError,
    ProfileError,
    RendezvousError,
    ResultError,
    RunInUseError,
    TorchyardError,
    TrainingError,
)
from torchyard.model.run import RunResult

from .flow_run.inner_run import plan
from .flow_run.result import read_result
from .steps import collect, ensure_rendezvous, preflight, submit, teardown, wait
from .train import train_profile

__all__ = [
    "ClusterError",
    "HostError",
    "PreflightError",
    "ProfileError",
    "RendezvousError",
    "ResultError",
    "RunInUseError",
    "RunResult",
    "TorchyardError",
    "TrainingError",
    "collect",
    "ensure_rendezvous",
    "load_profile",
    "plan",
    "preflight",
    "read_result",
    "submit",
    "teardown",
    "train_profile",
    "wait",
]
