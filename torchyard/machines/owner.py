"""Finds out from the hosts of a run who owns it, and which attempts another machine has started there."""

from collections.abc import Sequence

from torchyard.common.log import get_log
from torchyard.interfaces import BuildPlan, Owner, RemoteAttempt
from torchyard.machines import processes
from torchyard.machines.host_command import script_command
from torchyard.machines.ownership import check_response, identify_owner, is_confirmed, record_confirmation
from torchyard.machines.staging import find_last_attempt
from torchyard.model.errors import DetachedError, HostError
from torchyard.model.plan import CommandPlan, Site

_OWNER_TIMEOUT_S = 90.0  # a host waits up to a minute whether another owner sends another heartbeat


class MachinesOwner(Owner):
    """The `Owner` of a run on machines, which asks the hosts.

    Each host records the run's owner beside the job, and acts on it: it refuses a launcher that does not own the run,
    also to end or remove anything, accepts heartbeats of its next process, and ends its processes once there are none.
    A host that does not answer confirms nothing and is not waited for: nothing can be ended there either.
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

    def check(self) -> None:
        sites = self._plan.sites
        self._check_hosts([site for site in sites if not is_confirmed(site.host, identify_owner(site.files))])

    def check_not_elsewhere(self) -> None:
        self._check_hosts(self._plan.sites)

    def _check_hosts(self, sites: Sequence[Site]) -> None:
        """Raise RunInUseError if a host names another living owner of the run.

        A host that does not respond proves nothing and is skipped: it names its owner when something is started or
        ended there.
        """
        owners = [identify_owner(site.files) for site in sites]
        commands = [
            (site.host, script_command(site.host, site.python, "staging.py", "owner", site.folder, owner))
            for site, owner in zip(sites, owners, strict=True)
        ]
        responses = processes.run_commands(commands, timeout_s=_OWNER_TIMEOUT_S, retry_timeout_s=0.0)
        for site, owner, response in zip(sites, owners, responses, strict=True):
            if isinstance(response, HostError):
                get_log().debug("cannot find out who owns %s: %s", self._plan.job, response)
                continue
            check_response(site.host, response)
            record_confirmation(site.host, owner)
