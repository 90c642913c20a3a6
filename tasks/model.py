"""The nouns of a run, in the order a run makes them: start reading here. What the user wrote is in tasks/spec.py."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from tasks.spec import Deadlines, Noun, Profile

# --- who we are ----------------------------------------------------------------------------------------------------


class Run(Noun):
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


# --- what must be true before submitting ---------------------------------------------------------------------------


class WritableFolder(Noun):
    """A folder that exists or can be made, with room for a log."""

    kind: Literal["folder"] = "folder"
    host: str
    path: str


class ProgramFile(Noun):
    """A file that the job reads."""

    kind: Literal["file"] = "file"
    host: str
    path: str


class Package(Noun):
    """A Python distribution in the job's interpreter."""

    kind: Literal["package"] = "package"
    host: str
    python: str
    name: str
    at_least: str
    why: str


class FreePort(Noun):
    """A TCP port that nobody listens on."""

    kind: Literal["port"] = "port"
    host: str
    port: int
    option: str = Field(description="the key that chooses another")


class Processors(Noun):
    """Enough processors for the processes of a host; fewer is a warning."""

    kind: Literal["processors"] = "processors"
    host: str
    count: int


Requirement = Annotated[WritableFolder | ProgramFile | Package | FreePort | Processors, Field(discriminator="kind")]
Verdict = Literal["ok", "warning", "failed"]


class Check(Noun):
    """What preflight found for one requirement."""

    need: str
    verdict: Verdict
    detail: str
    remedy: str = ""


# --- what would run: pure, printable -------------------------------------------------------------------------------


THIS_MACHINE = frozenset({"localhost", "127.0.0.1"})


class Command(Noun):
    """A program to start on a host; `input` goes to its stdin as JSON."""

    argv: tuple[str, ...]
    input: dict[str, Any] | None = None


class Block(Noun):
    """One kept process on one host. Submit and cancel print one JSON object; status prints one at every change."""

    name: str
    host: str
    log: str = Field(description="the log's path on the launcher's machine")
    submit: Command
    status: Command
    cancel: Command


class CommandPlan(Noun):
    """A job made of processes: one block per host, and the rendezvous store where the run brings its own."""

    kind: Literal["commands"] = "commands"
    launcher: str
    job: str
    label: str = Field(description="what every process of the job carries in its environment")
    on: tuple[Block, ...]
    store: Block | None = None
    probe: str | None = Field(None, description="the URL that answers 200 once the rendezvous store serves the v2 API")
    requires: tuple[Requirement, ...]

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Every block, the store first: the order of starting. Stopping goes backwards."""
        return (self.store, *self.on) if self.store else self.on


Plan = CommandPlan


# --- what was started, and how it goes -----------------------------------------------------------------------------


class Handle(Noun):
    """Enough, alone, to wait, follow, collect and tear down."""

    plan: Plan
    deadlines: Deadlines
    created: bool = Field(description="False: it was there, and was adopted")
    submitted_at: float


class Observation(NamedTuple):
    """Raw facts: what each block's status command printed last, and which nodes' logs say that they joined."""

    seen: Mapping[str, Mapping[str, Any]]
    joined: frozenset[str]


State = Literal["pending", "running", "succeeded", "failed", "gone"]
ENDED: frozenset[State] = frozenset({"succeeded", "failed", "gone"})


class Status(Noun):
    """How a job is, in one word and one sentence."""

    state: State
    reason: str


class Outcome(Noun):
    """How a job ended: `cause` is set where the launcher itself ended it."""

    status: Status
    cause: Literal["start-deadline", "run-deadline", "silence", "stopped"] | None = None
    started_after: float | None = Field(None, description="seconds from submit until every node had joined")
    exits: dict[str, int | None] = Field(description="exit code by block; negative is a signal; None is unknown")
    ended_at: float | None = Field(None, description="when the last process of the job exited, by its host's clock")


# --- what is left: logs, metrics, report ---------------------------------------------------------------------------


class LogLine(NamedTuple):
    """One line of one node's log; `at` in seconds since the epoch."""

    at: float
    node: str
    text: str


class LogFile(Noun):
    """One node's log on disk; `lost` says what is missing for good."""

    node: str
    path: str
    lines: int
    lost: str = ""


Row = dict[str, float | int | str | bool | None]


class Metrics(Noun):
    """What rank 0 measured: one row per epoch, step or trial, and what held for the whole run."""

    rows: tuple[Row, ...] = ()
    summary: Row = Field({})


class Failure(Noun):
    """Why a job failed, and where it began."""

    cause: str = Field(description="a stable slug: program-error, oom-host, rendezvous-timeout ...")
    sentence: str
    node: str | None = None
    rank: int | None = None
    exit_code: int | None = Field(None, description="the worker's own; negative is a signal")
    retry: bool = Field(False, description="worth a new attempt")
    line: str | None = Field(None, description="the log line that proves it")
    tail: tuple[str, ...] = Field((), description="the last 50 lines of the failing rank or node")


class Collected(Noun):
    """What the logs of one attempt hold."""

    logs: tuple[LogFile, ...]
    metrics: Metrics
    failure: Failure | None


class Attempt(Noun):
    """One try, ended."""

    number: int
    outcome: Outcome
    collected: Collected


class Step(Noun):
    """One step of the line, for the report."""

    name: str
    seconds: float
    detail: str


End = Literal["succeeded", "failed", "cancelled", "stopped", "swept", "gave-up"]


class Report(Noun):
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
