"""The nouns of a run, in the order a run makes them: start reading here.

What the user wrote is in profile.py, what would run in plan.py, what must be true before that in requirements.py.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import Field

from torchyard.model.base import FrozenModel
from torchyard.model.plan import Plan
from torchyard.model.profile import Deadlines, Profile

# --- who we are ----------------------------------------------------------------------------------------------------


class Run(FrozenModel):
    """One try of one flow run: every name, label, port and rendezvous id comes from it."""

    id: str = Field(description="the flow run's id, stable over its retries")
    attempt: int = Field(ge=1)
    folder: str = Field(description="the run's folder on the launcher's machine")

    @property
    def short(self) -> str:
        """The last 8 hex digits: the first ones of a time-ordered UUID are alike for a minute."""
        return self.id.replace("-", "")[-8:]

    def name(self, profile: Profile) -> str:
        return f"{profile.name}-{self.short}"

    def job(self, profile: Profile) -> str:
        """The name of this attempt's objects in a cluster: the one before may still be going away."""
        return f"{self.name(profile)}-{self.attempt}"

    def log(self, node: str) -> str:
        return f"{self.folder}/attempt-{self.attempt}/{node}/log"


# --- what was started, and how it goes -----------------------------------------------------------------------------


class Handle(FrozenModel):
    """Enough, alone, to wait, follow, collect and tear down."""

    plan: Plan
    deadlines: Deadlines
    created: bool = Field(description="False: it was there, and was adopted")
    submitted_at: float = Field(description="by the clock of the host or of the API server")
    age: float = Field(0.0, description="seconds since then, where it was adopted")


class Observation(NamedTuple):
    """Raw facts: what each block's status command printed last, or each object (`Kind/name`) as the API gave it last.

    `joined`: the nodes whose logs say that they joined; `at`: now, in seconds since the epoch.
    """

    seen: Mapping[str, Mapping[str, Any]]
    joined: frozenset[str]
    at: float = 0.0


State = Literal["pending", "running", "succeeded", "failed", "gone"]
ENDED_STATES: frozenset[State] = frozenset({"succeeded", "failed", "gone"})


class Failure(FrozenModel):
    """Why a job failed, and where it began."""

    cause: str = Field(description="a stable slug: program-error, oom-host, rendezvous-timeout ...")
    sentence: str
    node: str | None = None
    rank: int | None = None
    exit_code: int | None = Field(None, description="the worker's own; negative is a signal")
    retry: bool = Field(False, description="worth a new attempt")
    line: str | None = Field(None, description="the log line that proves it")
    tail: tuple[str, ...] = Field((), description="the last 50 lines of the failing rank or node")


class Status(FrozenModel):
    """How a job is, in one word and one sentence."""

    state: State
    reason: str
    failure: Failure | None = Field(None, description="where the controllers know a cause that no log can tell")


class Outcome(FrozenModel):
    """How a job ended: `cause` is set where the launcher itself ended it."""

    status: Status
    cause: Literal["start-deadline", "run-deadline", "silence", "stopped"] | None = None
    started_after: float | None = Field(None, description="seconds from submit until every node had joined")
    exits: dict[str, int | None] = Field(description="exit code by block; negative is a signal; None is unknown")
    ended_at: float | None = Field(None, description="when the last process of the job exited, by its host's clock")
    lost: dict[str, str] = Field({}, description="what a log lacks for good, by block")
    machines: dict[str, str] = Field({}, description="where each node ran: a node of the cluster, a host")


# --- what is left: logs, metrics, report ---------------------------------------------------------------------------


class LogLine(NamedTuple):
    """One line of one node's log; `at` in seconds since the epoch."""

    at: float
    node: str
    text: str


class LogFile(FrozenModel):
    """One node's log on disk; `lost` says what is missing for good."""

    node: str
    path: str
    lines: int
    lost: str = ""


Row = dict[str, float | int | str | bool | None]
MAX_ROWS = 1000  # of one attempt: what a plot can show, and a report can hold


class Metrics(FrozenModel):
    """What rank 0 measured: one row per epoch, step or trial, and what held for the whole run."""

    rows: tuple[Row, ...] = Field(
        (), description=f"at most {MAX_ROWS}: of a longer run they are thinned evenly, the first and the last kept"
    )
    count: int = Field(0, description="how many rows there were before they were thinned; 0 where all are kept")
    summary: Row = Field({})


class Collected(FrozenModel):
    """What the logs of one attempt hold."""

    logs: tuple[LogFile, ...]
    metrics: Metrics
    failure: Failure | None


class Attempt(FrozenModel):
    """One try, ended."""

    number: int
    outcome: Outcome
    collected: Collected


class Step(FrozenModel):
    """One step of the line, for the report."""

    name: str
    seconds: float
    detail: str


End = Literal["succeeded", "failed", "cancelled", "stopped", "swept", "gave-up"]


class Report(FrozenModel):
    """The end of a run."""

    profile: str
    run: str
    end: End
    sentence: str
    seconds: float
    steps: tuple[Step, ...]
    attempts: tuple[Attempt, ...]
    left: tuple[str, ...] = Field((), description="what teardown could not remove")
    folder: str

    @property
    def collected(self) -> Collected | None:
        """The logs and metrics of the last attempt."""
        return self.attempts[-1].collected if self.attempts else None
