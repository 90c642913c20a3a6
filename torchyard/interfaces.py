"""The interfaces between a run and the outside: the job of a plan, its watch, its nodes, and the owner of the run.

torchyard/cluster implements them for a ManifestPlan, torchyard/machines for a CommandPlan; torchyard/backends.py
chooses. Another kind of plan needs its classes and a case there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

from torchyard.diagnosis.no_progress import Diagnosis
from torchyard.model.errors import TorchyardError
from torchyard.model.finding import Finding
from torchyard.model.plan import Plan
from torchyard.model.profile import Deadlines
from torchyard.model.run import ContainerFailure, End, Handle, Outcome

PollCallback = Callable[[], object]
OutputCallback = Callable[[str, int, bytes], object]  # a node, 1 for stdout or 2 for stderr, and what has arrived


class JobWatch(Protocol):
    """Observes a job, in a cluster or on machines: its states, its exit codes, and its logs, which are copied to disk.

    Order of calls. Enter the watch; `poll` repeatedly; once the job has ended, `await_exit_codes`, `drain_ended_logs`
    before the job is stopped and `drain_logs` after it; leave the watch. One thread makes all calls. `states` and the
    methods without I/O show the job as of the last `poll`.

    states: see Observation.states.
    now: seconds since the epoch by the clock that dates `states`.
    poll: wait for changes, at most `timeout_s` seconds; return whether there were any.
    await_exit_codes: wait until `states` has the exit codes that the job's end follows from, at most `timeout_s`.
    exit_codes: by process or node; negative is a signal, None is unknown.
    ended_at, started_at: seconds since the epoch by the clock of the node or host; None and 0 if that has not happened.
    job_age_s: seconds since the job was started, by the clock of its host; None if only the handle has that.
    losing_logs, lost_logs: what a log lacks, by process or node; so far, and permanently.
    diagnose: why the job makes no progress; None if it does. `is_last`: query again before the job is given up.
    machines: the cluster node or host of each process.
    container_failures: of containers that have failed so far, also of those that were restarted.
    is_fully_observed: whether `states` is current.
    is_disconnected: whether a log may grow unread.
    record_outcome: for a process that resumes the run; None removes an earlier record, because the job continues.
    drain_ended_logs, drain_logs: read logs to their end, until nothing has arrived for `idle_timeout_s`; `on_poll` is
    called at each poll. `drain_logs` returns whether all logs are complete.

    `poll` raises RunInUseError if another process has taken the run over.
    """

    states: dict[str, Mapping[str, Any]]

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def now(self) -> float: ...
    def poll(self, *, timeout_s: float) -> bool: ...
    def await_exit_codes(self, *, timeout_s: float) -> None: ...
    def exit_codes(self) -> dict[str, int | None]: ...
    def ended_at(self) -> float | None: ...
    def started_at(self) -> float: ...
    def job_age_s(self) -> float | None: ...
    def losing_logs(self) -> dict[str, str]: ...
    def lost_logs(self) -> dict[str, str]: ...
    def diagnose(self, *, is_last: bool = False) -> Diagnosis | None: ...
    def machines(self) -> dict[str, str]: ...
    def container_failures(self) -> tuple[ContainerFailure, ...]: ...
    def is_fully_observed(self) -> bool: ...
    def is_disconnected(self) -> bool: ...
    def record_outcome(self, outcome: Outcome | None) -> None: ...
    def drain_ended_logs(self, on_poll: PollCallback, *, idle_timeout_s: float) -> None: ...
    def drain_logs(self, on_poll: PollCallback | None = None, *, idle_timeout_s: float) -> bool: ...


class RemoteAttempt(NamedTuple):
    """The latest attempt of a run on another machine.

    journal_fields: for this machine's journal, in the event of the run's start.
    outcome: of the attempt; None if it has not ended.
    ending: the end that the run was coming to, and its sentence; None if none is recorded.
    """

    number: int
    plan: Plan
    journal_fields: Mapping[str, Any]
    outcome: Outcome | None = None
    ending: tuple[End, str] | None = None


class Job(Protocol):
    """Carries out one plan. Every method can be called again, by this process or by the next one.

    before the job      locate, reach, check, prepare
    the job             start_store, submit, watch, stop, kill, stop_unwatched, remove

    Raises HostError or ClusterError if a host or the API server refuses a request, RunInUseError if another living
    process owns the run.

    Example: `handle = job_of(plan).submit(deadlines, submitted_at=None)`
    """

    def locate(self) -> Plan:
        """The plan with the place where it will run, so that the next process finds the job there."""

    def reach(self) -> None:
        """Wait a while for unreachable hosts or an unreachable API server; `check` reports those that stay away."""

    def check(self) -> tuple[Finding, ...]:
        """One finding for each requirement of the plan."""

    def prepare(self) -> Plan:
        """The plan without optional parts that this user may not create."""

    def start_store(self) -> None:
        """Start the run's rendezvous store, if it has one. Raises RendezvousError if the store does not respond."""

    def submit(self, deadlines: Deadlines, submitted_at: float | None) -> Handle:
        """Start the job, or attach to it if it exists.

        `submitted_at`: when an earlier process submitted it, in seconds since the epoch; then no job is started. None
        if no process has.
        """

    def now(self) -> float:
        """Seconds since the epoch by the clock that dates the job; this machine's if that one cannot be read."""

    def watch(self, on_poll: PollCallback) -> JobWatch:
        """The watch of the job. Entering it waits for the first states, and calls `on_poll` meanwhile."""

    def stop(self) -> None:
        """Stop the job. Its store and files stay until `remove`, because its logs are read first."""

    def kill(self) -> None:
        """End the processes of a job that is being stopped at once, without the rest of their grace.

        Called on another thread than the stop.
        """

    def stop_unwatched(self) -> dict[str, str]:
        """Stop a job that no process waits for, and read its logs to their end; return what they lack, by node."""

    def list_live_processes(self, *, ended_after_s: float) -> list[str]:
        """Stop the processes on hosts again, and describe those that may still run; empty if none can.

        ended_after_s: their lease and their grace. A process whose host could not be reached for so long has ended by
            itself, unless an earlier query has found it running. Each query that reaches a host renews the lease there.
        """

    def remove(self) -> list[str]:
        """Remove all objects or processes of the plan, the store last; return a description of each leftover."""


class NodeAccess(Protocol):
    """Looks into the nodes of a running job: with the environment and the work folder of its program there.

    It neither owns nor changes the run: a command that is still running when the job is torn down is not waited for.

    Raises AccessError if a node has not started, has ended or may not be entered, and ClusterError if the API server
    fails. A host's own refusal is its command's output, with a nonzero exit code.

    Example: `access_to(plan).run_command("node-0", ["nvidia-smi"], has_terminal=False)`
    """

    def run_command(self, node: str, argv: Sequence[str], *, has_terminal: bool) -> int:
        """Run a command with this process's stdin, stdout and stderr; return its exit code. May replace this process.

        `has_terminal`: stdin and stdout are a terminal, and the command gets one too.
        """

    def run_on_nodes(
        self, nodes: Sequence[str], argv: Sequence[str], on_output: OutputCallback
    ) -> dict[str, int | TorchyardError]:
        """Run a command on nodes at once, without input; return the exit code of each, or its error.

        `on_output` is called for each piece of output, possibly from several threads.
        """

    def forward_port(self, node: str, local_port: int, remote_port: int) -> int:
        """Forward a port of this machine's loopback interface to a node, until Ctrl-C; return an exit code.

        May replace this process. For a process of this machine it prints that its ports need no forwarding.
        """


class RunNodes(NamedTuple):
    """The nodes of a run's job, in its order, and the access to them."""

    names: tuple[str, ...]
    access: NodeAccess


class BuildPlan(Protocol):
    """Returns the plan of an attempt, by its number and by how many of its ports were held (Run.port_try)."""

    def __call__(self, number: int, port_try: int = 0) -> Plan: ...


class Owner:
    """Records who owns a run, where other machines can read it.

    This class is the owner where nothing but the run's folder and the job itself records one: it does nothing.

    Raises ClusterError if the API server refuses a request.

    Example: `owner_of(plan).release()`
    """

    def take_over(self, build_plan: BuildPlan, started_attempts: Sequence[int]) -> RemoteAttempt | None:
        """Take the run over from another machine, and return the attempt of that machine.

        None if this machine has the latest attempt, or no machine has started one. `build_plan` returns the plan of an
        attempt, by its number; `started_attempts`: the numbers of the attempts that this machine has recorded.
        """

    def check(self) -> None:
        """Raise RunInUseError if another process has taken the run over from this one."""

    def check_not_elsewhere(self) -> None:
        """Raise RunInUseError if another machine may still own the run."""

    def record_ending(self, end: End, sentence: str) -> None:
        """Record the end that the run is coming to, where another machine can read it."""

    def abandon(self) -> None:
        """Stop renewing the ownership. Once it has expired, a sweep removes the leftovers."""

    def hand_over(self) -> None:
        """Release a run that continues in its next process, which then need not wait until the ownership expires."""

    def release(self) -> None:
        """Give up the ownership of a run that has no leftovers."""
