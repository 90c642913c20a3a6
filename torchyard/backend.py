"""The seam between a run and the world: who carries a plan out.

A plan of objects has the backend of a cluster, a plan of processes that of machines. A step asks `backend_of` once, and
does not know which one it speaks to. Another kind of plan needs a class with these verbs and a case in `backend_of`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, assert_never

from torchyard.diagnosis.no_progress import Diagnosis
from torchyard.model.plan import CommandPlan, ManifestPlan, Plan
from torchyard.model.profile import Deadlines
from torchyard.model.requirements import Check
from torchyard.model.run import End, Handle, Outcome

PollCallback = Callable[[], object]


class JobWatch(Protocol):
    """What tells how a job is, wherever it runs. `seen` is current after each `changes`."""

    seen: dict[str, Mapping[str, Any]]

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def changes(self, timeout: float) -> bool: ...
    def exits(self) -> dict[str, int | None]: ...
    def ended_at(self) -> float | None: ...
    def running_at(self) -> float: ...
    def losing(self) -> dict[str, str]: ...
    def lost(self) -> dict[str, str]: ...
    def why(self, last: bool = False) -> Diagnosis | None: ...
    def machines(self) -> dict[str, str]: ...
    def known(self) -> bool: ...
    def deaf(self) -> bool: ...
    def note(self, outcome: Outcome) -> None: ...
    def secure(self, quiet: float, pulse: PollCallback) -> None: ...
    def settle(self, quiet: float, pulse: PollCallback = ...) -> bool: ...


class RemoteAttempt(NamedTuple):
    """What another machine has done of a run: its latest attempt, and how that ended, where it has.

    `facts` are journalled with the beginning of the run here.
    """

    number: int
    plan: Plan
    facts: Mapping[str, Any]
    outcome: Outcome | None = None
    ending: tuple[End, str] | None = None


class Backend(Protocol):
    """Carries one plan out. Every verb can be called again, by this process or by the next one.

    HostError or ClusterError where a host or the API server refuses; RunInUseError where another living process carries
    the run.
    """

    def locate(self) -> Plan:
        """The plan, tied to where it will run: the next process must find the job there."""

    def reach(self) -> None:
        """Wait a while for a world that is away; `check` tells what it is in the end."""

    def check(self) -> tuple[Check, ...]:
        """One finding for each requirement of the plan."""

    def prepare(self) -> Plan:
        """The plan without what the job does without and this user may not make."""

    def start_store(self) -> None:
        """Start the rendezvous store where it is the run's own, and prove that it serves. RendezvousError if not."""

    def submit(self, deadlines: Deadlines, since: float | None) -> Handle:
        """The job, started or adopted. `since`: when an earlier process submitted it; it is only attached to then."""

    def watch(self, on_poll: PollCallback) -> JobWatch:
        """The watch of the job; it is current once it is entered, and calls `on_poll` until then."""

    def stop(self) -> None:
        """Stop the job alone: what it leaves is read before the rest goes."""

    def remove(self) -> list[str]:
        """Remove everything of the plan, the store last; what could not be removed."""

    def release(self) -> None:
        """Let go of a run of which nothing is left."""

    def check_owner(self) -> None:
        """RunInUseError where another process has taken the run over since."""

    def refuse_carried(self) -> None:
        """RunInUseError where another machine may still carry the run."""

    def abandon_lease(self) -> None:
        """Renew nothing any more: whatever is left is for the sweep."""

    def record_ending(self, end: End, sentence: str) -> None:
        """Write down, where another machine will read it, which end the run is coming to."""

    def take_over(self, plan_of: Callable[[int], Plan], begun: Sequence[int]) -> RemoteAttempt | None:
        """What another machine has done of this run, which is ours from now on; None where this machine knows it all.

        `plan_of` gives the plan of an attempt; `begun` are the attempts that are known here.
        """


def backend_of(plan: Plan) -> Backend:
    """The backend of a plan. It is imported now: a run on this machine loads no Kubernetes client."""
    match plan:
        case CommandPlan():
            from torchyard.machines.backend import MachinesBackend

            return MachinesBackend(plan)
        case ManifestPlan():
            from torchyard.cluster.backend import ClusterBackend

            return ClusterBackend(plan)
        case _:
            assert_never(plan)
