"""The models of a run, in the order in which it creates them: start reading here.

The user's profile is in profile.py, the plan in plan.py, the requirements of a plan in requirements.py.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import ConfigDict, Field

from torchyard.model.base import FrozenModel
from torchyard.model.causes.registry import StoredCause
from torchyard.model.checkpoint import Checkpoint, ResumePoint, SavedWork, StopRequest
from torchyard.model.fabric import FabricVerdict
from torchyard.model.finding import Finding
from torchyard.model.hang import Hang, Straggler
from torchyard.model.plan import Plan
from torchyard.model.profile import Deadlines, Profile
from torchyard.model.trend import TrendVerdict

# --- identity ------------------------------------------------------------------------------------------------------


class Run(FrozenModel):
    """One attempt of one flow run: every name, label, port and rendezvous id is derived from it."""

    id: str = Field(description="the flow run's id, stable over its retries")
    attempt: int = Field(ge=1)
    port_try: int = Field(0, ge=0, description="how many of the attempt's ports were held by other processes")
    folder: str = Field(description="the run's folder on the launcher's machine")
    resume: ResumePoint | None = Field(None, description="the checkpoint from which it continues; None: from the start")

    @property
    def short(self) -> str:
        """The last 8 hex digits of the id: the first ones of a time-ordered UUID stay the same for a minute."""
        return self.id.replace("-", "")[-8:]

    def name(self, profile: Profile) -> str:
        return f"{profile.name}-{self.short}"

    def job(self, profile: Profile) -> str:
        """The name of this attempt's objects in a cluster: those of the previous one may still be terminating."""
        return f"{self.name(profile)}-{self.attempt}"

    def log(self, node: str) -> str:
        return f"{self.folder}/attempt-{self.attempt}/{node}/log"


# A run that is only planned: its names are as long as those of a real one.
TRIAL_RUN = Run(id="00000000-0000-0000-0000-000000000000", attempt=1, folder="")


# --- the submitted job and its state -------------------------------------------------------------------------------


class Handle(FrozenModel):
    """A submitted job: sufficient to wait, follow, collect and tear down."""

    plan: Plan
    deadlines: Deadlines
    created: bool = Field(description="False: the job already existed and was adopted")
    submitted_at: float = Field(description="by the clock of the host or of the API server")
    age_s: float = Field(0.0, description="seconds since then, by the same clock; 0 if its watch reports them later")


class Observation(NamedTuple):
    """Raw facts about a job, from which a launcher reads its status.

    `states`: the last output of each process's status command by process name, or the last version of each object by
    `Kind/name`, without `managedFields`, and of a pod without its environment, command and volumes. `joined`: the nodes
    whose logs show that they joined the rendezvous. `observed_at`: seconds since the epoch, by the clock that dates the
    states.
    """

    states: Mapping[str, Mapping[str, Any]]
    joined: frozenset[str]
    observed_at: float = 0.0


State = Literal["pending", "running", "succeeded", "failed", "gone"]
ENDED_STATES: frozenset[State] = frozenset({"succeeded", "failed", "gone"})


def _get_retry(fields: dict[str, Any]) -> bool:
    """Whether a new attempt may succeed after a failure whose previous fields are given, by its cause alone."""
    return fields["cause"].retry if "cause" in fields else False


def _get_requeue(fields: dict[str, Any]) -> bool:
    """Whether the platform took the machines away, by the cause of a failure whose previous fields are given."""
    return fields["cause"].requeue if "cause" in fields else False


class JobProgress(FrozenModel):
    """What the launcher has read of the job that it waits for, for those who look at the run from outside.

    values: those of rank 0's newest row, such as `epoch 3: loss 0.25`; empty if there are none.
    done: the share of the work that is done, in words, such as `epoch 3 of 10`; empty if the rows name no total.
    percent: the same as a number; None likewise.
    remaining_s: of the job, estimated when this was written; None if it cannot be estimated.
    reason: what a job that has not started waits for; empty for one that runs.
    warning: that a rank hangs, or that a loss is not a number; empty if neither was found.
    """

    attempt: int
    updated_at: float = Field(description="in seconds since the epoch")
    values: str = ""
    done: str = ""
    percent: float | None = None
    remaining_s: float | None = None
    reason: str = ""
    warning: str = ""


class Failure(FrozenModel):
    """Why a job failed, and where the failure started."""

    cause: StoredCause = Field(description="a stable slug: program-error, oom-host, rendezvous-timeout ...")
    sentence: str
    node: str | None = None
    rank: int | None = None
    exit_code: int | None = Field(None, description="of the worker; negative: a signal")
    retry: bool = Field(default_factory=_get_retry, description="whether a new attempt may succeed")
    requeue: bool = Field(
        default_factory=_get_requeue,
        description="whether the platform took the machines away, so that a new attempt is one of `requeues`",
    )
    stopped_at: float | None = Field(
        None, description="when the platform asked the job to stop, by the API server's clock; None if it is not known"
    )
    line: str | None = Field(None, description="the log line that proves it, as it stands in the log")
    tail: tuple[str, ...] = Field((), description="the last 50 lines of the failing rank or node")


class Status(FrozenModel):
    """The state of a job, in one word and one sentence."""

    state: State
    reason: str
    failure: Failure | None = Field(None, description="a cause that only the controllers report and no log shows")
    retries: int = Field(0, description="how often the controllers or the kubelets have started the job again")


class ContainerFailure(FrozenModel):
    """A container that failed: its controller or kubelet restarted it, or its failure ended the attempt."""

    node: str
    failed_at: float
    exit_code: int


class BadLoss(FrozenModel):
    """A loss of rank 0 that is not a finite number."""

    name: str
    row: str = Field(description="the row that has it, in words: `epoch 3: loss nan`")
    count: int = Field(description="the number of such rows so far")

    @property
    def sentence(self) -> str:
        suffix = "" if self.count == 1 else f", the first of {self.count:,}"
        return f"{self.name} is nan or infinite in the row `{self.row}`{suffix}"


class Outcome(FrozenModel):
    """How a job ended; `cause` is set if the launcher itself ended it."""

    status: Status
    cause: StoredCause | None = None
    started_after: float | None = Field(
        None,
        description="seconds from the submit until the program started: until the last node joined, as its agent "
        "logged it, else until the last container or process started; None if it is not known",
    )
    container_failures: tuple[ContainerFailure, ...] = Field(
        (), description="the failures of all tries of the job's controller, in order"
    )
    exit_codes: dict[str, int | None] = Field(description="exit code by process; negative: a signal; None: unknown")
    ended_at: float | None = Field(None, description="when the last process of the job exited, by its host's clock")
    lost: dict[str, str] = Field({}, description="which lines of a log are permanently missing, by process")
    machines: dict[str, str] = Field({}, description="where each node ran: a cluster node or a host")
    stop: StopRequest | None = Field(None, description="who asked the job to stop; None if it ended by itself")
    hang: Hang | None = Field(None, description="the last one that was detected, if the job did not continue after it")
    straggler: Straggler | None = Field(
        None, description="the rank that the others waited for most; None if no rank was slower"
    )
    bad_loss: BadLoss | None = Field(None, description="the first one in rank 0's metrics; None if all were finite")


# --- results: logs, metrics, report --------------------------------------------------------------------------------


class LogLine(NamedTuple):
    """One line of one node's log; `timestamp` in seconds since the epoch."""

    timestamp: float
    node: str
    text: str


class LogFile(FrozenModel):
    """One node's log on disk; `lost` describes the lines that are permanently missing, "" if there are none."""

    node: str
    path: str
    lines: int
    lost: str = ""


RowValue = float | int | str | bool | None
Row = dict[str, RowValue]
MAX_ROWS = 1000  # per attempt: what a plot can show and a report can hold


MAX_CHECKPOINTS = 50  # of an attempt that a report holds


class Metrics(FrozenModel):
    """The metrics of rank 0: one row per epoch, step or trial, and a summary of the whole run."""

    rows: tuple[Row, ...] = Field(
        (), description=f"at most {MAX_ROWS}: more are thinned evenly, and the first and the last are kept"
    )
    count: int = Field(0, description="the number of rows before thinning; 0 if all are kept")
    summary: Row = Field({})


class Collected(FrozenModel):
    """The logs of one attempt and what was read from them."""

    logs: tuple[LogFile, ...]
    metrics: Metrics
    warnings: tuple[str, ...] = Field(
        (), description="signs that the job did not do what was intended, however it ended: one sentence each"
    )
    failure: Failure | None
    checkpoints: tuple[Checkpoint, ...] = Field(
        (), description=f"the last {MAX_CHECKPOINTS} that changed, each as it was reported last"
    )
    saved_work: SavedWork | None = Field(
        None, description="None for an attempt that succeeded, or of which no checkpoint was seen"
    )
    fabric: FabricVerdict | None = Field(
        None, description="None if the hardware promises nothing and no log contains NCCL lines"
    )


class Attempt(FrozenModel):
    """One attempt that has ended."""

    number: int
    outcome: Outcome
    collected: Collected


class Step(FrozenModel):
    """One step of the pipeline, for the report."""

    name: str
    seconds: float
    detail: str


End = Literal["succeeded", "failed", "cancelled", "stopped", "swept", "gave-up"]


class RunEnd(NamedTuple):
    """How a run ended, and the sentence that states why.

    findings: what prevented the next attempt: each failed check, or each mistake in the profile; else empty.
    """

    end: End
    sentence: str
    findings: tuple[Finding, ...] = ()


class Report(FrozenModel):
    """How a run ended: its steps, its attempts, and its leftovers."""

    profile: str
    run: str
    end: End
    sentence: str
    seconds: float
    steps: tuple[Step, ...]
    attempts: tuple[Attempt, ...]
    findings: tuple[Finding, ...] = Field(
        (), description="each failed check, or each mistake in the profile, that prevented the next attempt"
    )
    leftovers: tuple[str, ...] = Field((), description="objects, processes and folders that teardown could not remove")
    folder: str
    trend: TrendVerdict | None = Field(None, description="None if the profile compares no number")
    history: str = Field("", description="the file with the numbers of this profile's runs")
    archive: str = Field("", description="the URL of the archived run folder, or which files are missing in it")
    unsent: tuple[str, ...] = Field(
        (), description="messages and records of this run that were not delivered, each with the reason"
    )

    @property
    def collected(self) -> Collected | None:
        """The logs and metrics of the last attempt; None before the first attempt has ended."""
        return self.attempts[-1].collected if self.attempts else None


class EndedRun(NamedTuple):
    """How a run ended, and its report.

    report: None if this process has only repeated the end of an earlier one, or has given the run up.
    """

    end: End
    sentence: str
    report: Report | None = None


class RunResult(FrozenModel):
    """How a run ended and what it measured, small enough to be passed as JSON to a caller on another machine.

    The report contains everything else.

    Example: `if train_profile("digits-local").metrics["accuracy"] > 0.9: ...`
    """

    # The caller's version of torchyard may be older than the one that wrote the result.
    model_config = ConfigDict(frozen=True, extra="ignore")

    profile: str = Field(description="the name of the profile")
    run: str = Field(description="the name of the run's folder, objects and processes")
    end: End = Field(description="succeeded, failed, stopped (by a signal), cancelled, swept or gave-up")
    sentence: str = Field(
        description="why it ended this way; of a run that preflight prevented the first line is a summary, and each "
        "further line one of its findings"
    )
    seconds: float = Field(description="the duration of the run, in all its processes")
    attempts: int = Field(description="the number of attempts that have ended")
    metrics: Row = Field(
        {}, description="rank 0's last row, and its summary of the whole run, which wins if both have a key"
    )
    warnings: tuple[str, ...] = Field((), description="signs that the job did not do what was intended")
    checkpoints: tuple[str, ...] = Field(
        (),
        description="the paths that rank 0 printed as `checkpoint` or the recorder has seen, then the files in the "
        "run's folder, without torn ones; in each the newest is last",
    )
    resume: str | None = Field(
        None,
        description="the checkpoint from which a run with `resume: RUN` continues, as its path in the job; None if "
        "this run has left none",
    )
    report: str = Field("", description="the path of report.json, on the machine of the launcher")
