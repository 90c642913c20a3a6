"""The seam between a run and the world: backends carry plans out.

The backend of a ManifestPlan is a cluster, that of a CommandPlan is machines. A step calls `backend_of` once, and does
not know which one it got. Another kind of plan needs a class with these methods and a case in `backend_of`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, assert_never

from torchyard.diagnosis.no_progress import Diagnosis
from torchyard.model.plan import CommandPlan, ManifestPlan, Plan
from torchyard.model.profile import Deadlines
from torchyard.model.requirements import Check
from torchyard.model.run import ContainerFailure, End, Handle, Outcome

PollCallback = Callable[[], object]


class JobWatch(Protocol):
    """Observes a job, wherever it runs. `states` is current after each `poll`.

    `await_exit_codes` waits until the ends of the job's processes, which its own end follows from, are in `states`.
    """

    states: dict[str, Mapping[str, Any]]

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def poll(self, timeout_s: float) -> bool: ...
    def await_exit_codes(self, timeout_s: float) -> None: ...
    def exit_codes(self) -> dict[str, int | None]: ...
    def ended_at(self) -> float | None: ...
    def started_at(self) -> float: ...
    def losing_logs(self) -> dict[str, str]: ...
    def lost_logs(self) -> dict[str, str]: ...
    def diagnose(self, *, is_last: bool = False) -> Diagnosis | None: ...
    def machines(self) -> dict[str, str]: ...
    def container_failures(self) -> tuple[ContainerFailure, ...]: ...
    def is_fully_observed(self) -> bool: ...
    def is_disconnected(self) -> bool: ...
    def record_outcome(self, outcome: Outcome) -> None: ...
    def drain_ended_logs(self, idle_timeout_s: float, on_poll: PollCallback) -> None: ...
    def drain_logs(self, idle_timeout_s: float, on_poll: PollCallback = ...) -> bool: ...


class RemoteAttempt(NamedTuple):
    """What another machine has done for a run: its latest attempt, and how that ended, if it has.

    `journal_fields` are journalled with the start of the run here.
    """

    number: int
    plan: Plan
    journal_fields: Mapping[str, Any]
    outcome: Outcome | None = None
    ending: tuple[End, str] | None = None


class Backend(Protocol):
    """Carries one plan out. Every method can be called again, by this process or by the next one.

    before the job      locate, reach, check, prepare
    the job             start_store, submit, watch, stop, stop_unwatched, remove
    who owns the run    take_over, check_owner, check_not_owned_elsewhere, record_ending, abandon_lease, hand_over,
                        release

    HostError or ClusterError if a host or the API server refuses; RunInUseError if another living process owns the run.

    Example: `handle = backend_of(plan).submit(deadlines, submitted_at=None)`
    """

    def locate(self) -> Plan:
        """The plan, tied to where it will run: the next process must find the job there."""

    def reach(self) -> None:
        """Wait a while for hosts or an API server that cannot be reached; `check` reports what stays unreachable."""

    def check(self) -> tuple[Check, ...]:
        """One finding for each requirement of the plan."""

    def prepare(self) -> Plan:
        """The plan without optional parts that this user may not create."""

    def start_store(self) -> None:
        """Start the rendezvous store if it is the run's own, and prove that it serves. RendezvousError if not."""

    def submit(self, deadlines: Deadlines, submitted_at: float | None) -> Handle:
        """Start or adopt the job. `submitted_at`: when an earlier process submitted it; it is only attached to then."""

    def watch(self, on_poll: PollCallback) -> JobWatch:
        """The watch of the job; it is current once it is entered, and calls `on_poll` until then."""

    def stop(self) -> None:
        """Stop only the job: what it leaves is read before the rest is removed."""

    def stop_unwatched(self) -> dict[str, str]:
        """Stop the job if nobody waits for it, and read what it prints until its end; returns what its logs lack."""

    def remove(self) -> list[str]:
        """Remove everything of the plan, the store last; returns what could not be removed."""

    def release(self) -> None:
        """Give up ownership of a run that has left nothing behind."""

    def check_owner(self) -> None:
        """Raise RunInUseError if another process has taken the run over since."""

    def check_not_owned_elsewhere(self) -> None:
        """Raise RunInUseError if another machine may still own the run."""

    def abandon_lease(self) -> None:
        """Stop renewing the lease: anything that is left is for the sweep."""

    def hand_over(self) -> None:
        """Leave a run that goes on to its next process, which is about to start."""

    def record_ending(self, end: End, sentence: str) -> None:
        """Record which end the run is coming to, where another machine will read it."""

    def take_over(self, build_plan: Callable[[int], Plan], started_attempts: Sequence[int]) -> RemoteAttempt | None:
        """Take the run over from another machine; returns what that one did, None if this machine knows it all.

        `build_plan` returns the plan of an attempt; `started_attempts` are the attempts that are known here.
        """


def backend_of(plan: Plan) -> Backend:
    """The backend of a plan. It is imported only here, so a run on this machine loads no Kubernetes client."""
    match plan:
        case CommandPlan():
            from torchyard.machines.backend import MachinesBackend

            return MachinesBackend(plan)
        case ManifestPlan():
            from torchyard.cluster.backend import ClusterBackend

            return ClusterBackend(plan)
        case _:
            assert_never(plan)
