"""Carries out a plan of processes, on this machine and on hosts behind ssh."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from torchyard.code.archive import keep_archive, unpack_here
from torchyard.common.log import get_log
from torchyard.host.state import LIVE_PHASES
from torchyard.interfaces import PollCallback
from torchyard.machines import store
from torchyard.machines.checks import check_hosts
from torchyard.machines.host_script import call_scripts, submit_processes
from torchyard.machines.job_watch import ProcessWatch
from torchyard.machines.ownership import identify_owner
from torchyard.machines.staging import (
    end_unstaged,
    read_leftovers,
    remove_incomplete_folders,
    stage_in,
    stage_out_and_remove,
)
from torchyard.model.errors import HostError, UnreachedError
from torchyard.model.finding import Finding
from torchyard.model.plan import CommandPlan, Plan, Process
from torchyard.model.profile import Deadlines
from torchyard.model.run import Handle

_STOP_TIMEOUT_S = 90.0  # besides the grace of the processes


class MachinesJob:
    """The `Job` of machines. Each process has a supervisor on its host, which outlives this process.

    clock: monotonic seconds.
    """

    def __init__(self, plan: CommandPlan, clock: Callable[[], float] = time.monotonic) -> None:
        self._plan = plan
        self._clock = clock
        self._reached_at: dict[str, float] = {}  # by process: monotonic seconds until which a query renewed its lease
        self._live_names: set[str] = set()  # of the processes that a host has reported as running after their stop

    def locate(self) -> Plan:
        return self._plan

    def reach(self) -> None:
        """Nothing to do: `check` queries each host once."""

    def check(self) -> tuple[Finding, ...]:
        return check_hosts(self._plan.requires, self._plan.sites)

    def prepare(self) -> Plan:
        keep_archive(self._plan.code)
        return self._plan

    def start_store(self) -> None:
        store.start_store(self._plan)

    def submit(self, deadlines: Deadlines, submitted_at: float | None) -> Handle:
        if submitted_at is None:
            return _start_agents(self._plan, deadlines)
        # The watch queries the hosts later, also for the job's age: one that is away now does not hold up the others.
        get_log().info("attached to %s: %s", self._plan.job, _count_agents(self._plan))
        return Handle(plan=self._plan, deadlines=deadlines, created=False, submitted_at=submitted_at)

    def now(self) -> float:
        return time.time()  # preflight has compared the hosts' clocks with it

    def watch(self, on_poll: PollCallback) -> ProcessWatch:
        return ProcessWatch(self._plan.processes, self._plan.store)

    def stop(self) -> None:
        responses = _stop_processes(self._plan, self._plan.processes)
        for process in self._plan.processes:
            response = responses.get(process.name)
            if isinstance(response, dict) and response.get("phase") in LIVE_PHASES:
                leftovers = "; ".join(read_leftovers(process.host, response))
                raise HostError(process.host, f"stop {process.name}", leftovers)

    def kill(self) -> None:
        _stop_processes(self._plan, self._plan.processes, grace_s=0.0)

    def stop_unwatched(self) -> dict[str, str]:
        """Nothing to do: a log outlives its process, and `remove` stops the one and copies the other."""
        return {}

    def list_live_processes(self, *, ended_after_s: float) -> list[str]:
        queried_at = self._clock()
        stopped = _stop_job(self._plan)
        live: list[str] = []
        for name, leftovers in stopped.leftovers.items():
            if name in stopped.unreached:
                reached_at = self._reached_at.setdefault(name, queried_at)
                # Its supervisor has ended it by itself, unless it could not be ended before.
                if queried_at - reached_at >= ended_after_s and name not in self._live_names:
                    continue
            else:
                self._reached_at[name] = self._clock()  # each query renews the lease, also one without a response
                if leftovers and name in stopped.answered:
                    self._live_names.add(name)
            live += leftovers
        return live

    def remove(self) -> list[str]:
        return _remove_job(self._plan)


def _count_agents(plan: CommandPlan) -> str:
    count = len(plan.processes)
    return "1 agent" if count == 1 else f"{count} agents"


def _start_agents(plan: CommandPlan, deadlines: Deadlines) -> Handle:
    """Start or adopt the agents. HostError if a host refuses, or a supervisor does not start its process."""
    if plan.code and any(process.site is None for process in plan.processes):
        unpack_here(plan.code)
    stage_in(plan.sites)
    responses = submit_processes(plan.processes)
    created = all(response["created"] for response in responses)
    submitted_at = min((response["started"] for response in responses if "started" in response), default=time.time())
    get_log().info("%s %s: %s", "started" if created else "attached to", plan.job, _count_agents(plan))
    age_s = max(float(response.get("age_s", 0.0)) for response in responses)
    return Handle(plan=plan, deadlines=deadlines, created=created, submitted_at=submitted_at, age_s=age_s)


class _StoppedJob(NamedTuple):
    """What is known after every process was stopped.

    leftovers: what remains of each process, and why; empty for one that is proven to have ended.
    unstaged: the processes whose host has no supervisor of the run (any more).
    answered: the names of those whose host has reported what is left.
    unreached: the names of those whose host ssh did not reach; a query that failed in another way may have run there.
    """

    leftovers: dict[str, list[str]]
    unstaged: list[Process]
    answered: set[str]
    unreached: set[str]


def _stop_job(plan: CommandPlan) -> _StoppedJob:
    """Stop everything, the store last. A host that cannot be queried counts as left over."""
    responses = _stop_processes(plan, plan.processes)
    if plan.store:
        responses |= _stop_processes(plan, (plan.store,))
    leftovers = {
        process.name: read_leftovers(process.host, responses[process.name])
        for process in plan.all_processes
        if process.name in responses
    }
    unstaged = [process for process in plan.all_processes if _is_unstaged(responses.get(process.name))]
    leftovers |= end_unstaged(plan, unstaged)
    answered = {name for name, response in responses.items() if not isinstance(response, HostError)}
    unreached = {name for name, response in responses.items() if isinstance(response, UnreachedError)}
    return _StoppedJob(leftovers, unstaged, answered, unreached)


def _remove_job(plan: CommandPlan) -> list[str]:
    """Stop everything, and remove what was staged in. Returns what is left.

    A process that cannot be stopped keeps its folder. The folder of a host without the supervisor is removed without
    copying logs: only a supervisor can print them.
    """
    stopped = _stop_job(plan)
    leftovers = stopped.leftovers
    busy_hosts = {process.host for process in plan.all_processes if leftovers.get(process.name)}
    incomplete_hosts = {process.host for process in stopped.unstaged} - busy_hosts
    complete_hosts = {process.host for process in plan.all_processes if process.site} - incomplete_hosts - busy_hosts
    remaining: list[str] = []
    for process_leftovers in leftovers.values():
        remaining += process_leftovers
    remaining += stage_out_and_remove(plan, complete_hosts)
    remaining += remove_incomplete_folders(plan, incomplete_hosts)
    return remaining


def _stop_processes(
    plan: CommandPlan, job_processes: tuple[Process, ...], *, grace_s: float | None = None
) -> dict[str, Any]:
    """Stop processes of a plan, all at once. Returns the response of each by name, or the HostError in its place.

    `grace_s`: in place of each process's own. RunInUseError if another living launcher owns the run.
    """
    run = plan.label.partition("/")[0]

    def get_grace_s(process: Process) -> float:
        return process.grace if grace_s is None else grace_s

    def build_request(process: Process) -> dict[str, Any]:
        owner = identify_owner(process.log)
        return {"folder": process.folder, "grace": get_grace_s(process), "owner": owner, "run": run}

    longest_grace_s = max(map(get_grace_s, job_processes))
    return call_scripts("cancel", job_processes, build_request, timeout_s=longest_grace_s + _STOP_TIMEOUT_S)


def _is_unstaged(response: Any) -> bool:
    """Whether a host reports that it has no supervisor of the run: its folder is absent, or partly removed."""
    return isinstance(response, dict) and response.get("site") is False
