"""A plan of processes, carried out on this machine and on hosts behind ssh."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from torchyard.backend import PollCallback, RemoteAttempt
from torchyard.common.log import get_log
from torchyard.machines import processes, store
from torchyard.machines.checks import check_hosts
from torchyard.machines.job_watch import ProcessWatch
from torchyard.machines.staging import clean_up, end_unstaged, find_last_attempt, read_leftovers, stage_in
from torchyard.model.errors import HostError
from torchyard.model.plan import CommandPlan, Plan, Process
from torchyard.model.profile import Deadlines
from torchyard.model.requirements import Check
from torchyard.model.run import End, Handle

_STOP_TIMEOUT_S = 120  # a process's grace among it


class MachinesBackend:
    """See Backend. Each process has a keeper on its host, which outlives this process."""

    def __init__(self, plan: CommandPlan) -> None:
        self._plan = plan

    def locate(self) -> Plan:
        return self._plan

    def reach(self) -> None:
        """Each host is asked once, by `check`."""

    def check(self) -> tuple[Check, ...]:
        return check_hosts(self._plan.requires, self._plan.sites)

    def prepare(self) -> Plan:
        return self._plan

    def start_store(self) -> None:
        store.start_store(self._plan)

    def submit(self, deadlines: Deadlines, since: float | None) -> Handle:
        if since is None:
            return _start_agents(self._plan, deadlines)
        # Its hosts are asked by whoever waits for it: one that is away now does not hold up the others.
        get_log().info("attached to %s: %d agents", self._plan.job, len(self._plan.on))
        return Handle(
            plan=self._plan, deadlines=deadlines, created=False, submitted_at=since, age=_seconds_since(since)
        )

    def watch(self, on_poll: PollCallback) -> ProcessWatch:
        return ProcessWatch(self._plan.on, self._plan.store)

    def stop(self) -> None:
        _stop_processes(self._plan.on)

    def remove(self) -> list[str]:
        return _remove_job(self._plan)

    def release(self) -> None:
        """Nothing holds a run of which nothing is left."""

    def check_owner(self) -> None:
        """Each keeper tells who looks after its process, to the watch."""

    def refuse_carried(self) -> None:
        """Each keeper refuses by itself whom it does not belong to."""

    def abandon_lease(self) -> None:
        """Keepers end by themselves what nobody looks after any more."""

    def record_ending(self, end: End, sentence: str) -> None:
        """The run's folder has it already."""

    def take_over(self, plan_of: Callable[[int], Plan], begun: Sequence[int]) -> RemoteAttempt | None:
        """Where nothing is known here, the hosts know the latest attempt: each site says which machine carries it."""
        number = find_last_attempt(self._plan) if self._plan.sites and not begun else 0
        return RemoteAttempt(number, plan_of(number), {}) if number else None


def _start_agents(plan: CommandPlan, deadlines: Deadlines) -> Handle:
    """The agents, started or found. HostError where a host refuses, or a keeper does not start its process."""
    stage_in(plan.sites)
    begun = [(block, block.submit) for block in plan.on if block.submit]
    answers = processes.run_commands([(block.host, command) for block, command in begun])
    for (block, _), said in zip(begun, answers, strict=True):
        if isinstance(said, HostError):
            raise said
        if said["phase"] in ("failed", "starting"):
            raise HostError(block.host, f"start {block.name}", said.get("error") or "the keeper does not answer")
    created = all(said["created"] for said in answers)
    submitted_at = min((said["started"] for said in answers if "started" in said), default=time.time())
    get_log().info("%s %s: %d agents", "started" if created else "attached to", plan.job, len(plan.on))
    age = 0.0 if created else _seconds_since(submitted_at)
    return Handle(plan=plan, deadlines=deadlines, created=created, submitted_at=submitted_at, age=age)


def _remove_job(plan: CommandPlan) -> list[str]:
    """Stop everything, the store last, and take what was brought off the hosts; what is left."""
    said = {**_stop_processes(plan.on), **_stop_processes((plan.store,) if plan.store else ())}
    # A host that cannot be asked counts as left.
    left = {block.name: read_leftovers(block.host, said[block.name]) for block in plan.blocks if block.name in said}
    left |= end_unstaged(plan, [block for block in plan.blocks if _is_unstaged(said.get(block.name))])
    # What cannot be stopped keeps its folder; what never had one needs no more asking.
    sites = {block.host for block in plan.blocks if block.site and not left[block.name]}
    held = {block.host for block in plan.blocks if left.get(block.name) or _is_unstaged(said.get(block.name))}
    return [*(thing for things in left.values() for thing in things), *clean_up(plan, sites - held)]


def _stop_processes(blocks: tuple[Process, ...]) -> dict[str, Any]:
    """Stop blocks, all at once: what each of them answers, or the HostError in its place."""
    told = [(block, block.cancel) for block in blocks if block.cancel]
    answers = processes.run_commands([(block.host, command) for block, command in told], timeout=_STOP_TIMEOUT_S)
    return {block.name: answer for (block, _), answer in zip(told, answers, strict=True)}


def _is_unstaged(answer: Any) -> bool:
    """Whether a host says that no folder of the run is there."""
    return isinstance(answer, dict) and answer.get("site") is False


def _seconds_since(since: float) -> float:
    return max(time.time() - since, 0.0)
