"""Finds the attempts of a run that another machine has started on hosts."""

from collections.abc import Callable, Sequence

from torchyard.interfaces import Owner, RemoteAttempt
from torchyard.machines.staging import find_last_attempt
from torchyard.model.plan import CommandPlan, Plan


class MachinesOwner(Owner):
    """The `Owner` of a run on machines, of which only `take_over` does anything.

    Each host records the run's owner beside the job, and its supervisors act on it: they refuse a launcher that does
    not own the run, accept heartbeats of its next process, and end their processes once there are none.
    """

    def __init__(self, plan: CommandPlan) -> None:
        self._plan = plan

    def take_over(self, build_plan: Callable[[int], Plan], started_attempts: Sequence[int]) -> RemoteAttempt | None:
        """The latest attempt that has a folder on a host, if no attempt is known here; None if there is none.

        Nothing is taken over yet: staging in, and then each heartbeat, is refused while another owner is alive.
        """
        number = find_last_attempt(self._plan) if self._plan.sites and not started_attempts else 0
        return RemoteAttempt(number, build_plan(number), {}) if number else None
