"""The list of runs as data: what `torchyard ps --json` prints. These models are its schema."""

from typing import Literal

from pydantic import Field

from torchyard.model.base import FrozenModel
from torchyard.model.run import JobProgress

# preparing: no job is submitted. waiting: the job has not started. lost: no process owns the run, and its job may run
# on. moved: another machine has taken the run over. unreadable: `note` states why. The others are how the run ended.
RunState = Literal[
    "preparing",
    "waiting",
    "running",
    "ending",
    "lost",
    "moved",
    "gave-up",
    "succeeded",
    "failed",
    "cancelled",
    "stopped",
    "swept",
    "unreadable",
]
Source = Literal["folder", "archive", "cluster"]


class ListedRun(FrozenModel):
    """One run. What its source does not contain is empty or None."""

    name: str
    state: RunState
    is_over: bool = Field(False, description="the run has ended, and its job is removed")
    note: str = Field("", description="why the run is in this state: what it waits for, or why it ended like that")
    profile: str = ""
    launcher: str = Field("", description="such as baremetal or volcano")
    location: str = Field("", description="where the job runs: its hosts, or CONTEXT/NAMESPACE of its cluster")
    nodes: int | None = None
    processes: int | None = Field(None, description="per node")
    attempt: int | None = Field(None, description="the last one that was planned")
    progress: JobProgress | None = Field(None, description="of the last attempt, as its launcher has read it")
    started_at: float | None = Field(None, description="in seconds since the epoch")
    ended_at: float | None = None
    user: str = Field("", description="who started the run")
    host: str = Field("", description="the machine of the launcher")
    source: Source = "folder"


class RunList(FrozenModel):
    """Runs, the newest first; first of all those that cannot be read."""

    runs: tuple[ListedRun, ...]
    problems: tuple[str, ...] = Field((), description="what could not be read, so that runs may be missing here")
