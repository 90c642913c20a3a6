"""Finds the attempts of a run that another machine has started on hosts."""

from collections.abc import Sequence

from torchyard.interfaces import BuildPlan, Owner, RemoteAttempt
from torchyard.machines.staging import find_last_attempt
from torchyard.model.errors import DetachedError, HostError
from torchyard.model.plan import CommandPlan


class MachinesOwner(Owner):
    """The `Owner` of a run on machines, of which only `take_over` does anything.

    Each host records the run's owner beside the job, and its supervisors act on it: they refuse a launcher that does
    not own the run, accept heartbeats of its next process, and end their processes once there are none.
    """

    def __init__(self, plan: CommandPlan) -> None:
        self._plan = plan

    def take_over(self, build_plan: BuildPlan, started_attempts: Sequence[int]) -> RemoteAttempt | None:
        """The latest attempt that has a folder on a host, if no attempt is known here; None if there is none.

        Nothing is taken over yet: staging in, and then each heartbeat, is refused while another owner is alive. Raises
        DetachedError if a host does not answer: an attempt that it alone has must not be started a second time.
        """
        if not self._plan.sites or started_attempts:
            return None
        try:
            last_attempt = find_last_attempt(self._plan)
        except HostError as error:
            raise DetachedError(f"cannot find out whether this run has been started before ({error})") from error
        if last_attempt is None:
            return None
        plan = build_plan(last_attempt.number, last_attempt.port_try)
        return RemoteAttempt(last_attempt.number, plan, {})
