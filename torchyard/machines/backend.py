"""Carries out a plan of processes, on this machine and on hosts behind ssh."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from torchyard.backend import PollCallback, RemoteAttempt
from torchyard.common.log import get_log
from torchyard.machines import processes, store
from torchyard.machines.checks import check_hosts
from torchyard.machines.job_watch import ProcessWatch
from torchyard.machines.staging import (
    clean_up,
    end_unstaged,
    find_last_attempt,
    read_leftovers,
    remove_remains,
    stage_in,
)
from torchyard.model.errors import HostError
from torchyard.model.plan import CommandPlan, Plan, Process
from torchyard.model.profile import Deadlines
from torchyard.model.requirements import Check
from torchyard.model.run import End, Handle

_STOP_TIMEOUT_S = 120  # including a process's grace


class MachinesBackend:
    """See Backend. Each process has a supervisor on its host, which outlives this process."""

    def __init__(self, plan: CommandPlan) -> None:
        self._plan = plan

    def locate(self) -> Plan:
        return self._plan

    def reach(self) -> None:
        """Nothing to do: `check` asks each host once."""

    def check(self) -> tuple[Check, ...]:
        return check_hosts(self._plan.requires, self._plan.sites)

    def prepare(self) -> Plan:
        return self._plan

    def start_store(self) -> None:
        store.start_store(self._plan)

    def submit(self, deadlines: Deadlines, since: float | None) -> Handle:
        if since is None:
            return _start_agents(self._plan, deadlines)
        # The watch asks the hosts later: one that is away now does not hold up the others.
        get_log().info("attached to %s: %d agents", self._plan.job, len(self._plan.processes))
        return Handle(
            plan=self._plan, deadlines=deadlines, created=False, submitted_at=since, age_s=_seconds_since(since)
        )

    def watch(self, on_poll: PollCallback) -> ProcessWatch:
        return ProcessWatch(self._plan.processes, self._plan.store)

    def stop(self) -> None:
        _stop_processes(self._plan.processes)

    def stop_unwatched(self) -> dict[str, str]:
        """Nothing to do: a log outlives its process, and `remove` stops the one and copies the other."""
        return {}

    def remove(self) -> list[str]:
        return _remove_job(self._plan)

    def release(self) -> None:
        """Nothing to do: once everything is removed, no lease is left."""

    def check_owner(self) -> None:
        """Nothing to do: each supervisor reports the run's owner to the watch."""

    def refuse_carried(self) -> None:
        """Nothing to do: each host refuses a launcher that does not own the run."""

    def abandon_lease(self) -> None:
        """Nothing to do: each supervisor ends its process once the lease is no longer renewed."""

    def hand_over(self) -> None:
        """Nothing to do: each supervisor takes the next process of the run for its launcher."""

    def record_ending(self, end: End, sentence: str) -> None:
        """Nothing to do: the run's folder has it already."""

    def take_over(self, plan_of: Callable[[int], Plan], begun: Sequence[int]) -> RemoteAttempt | None:
        """The latest attempt that the hosts know, if none is known here; the run's folder there names its owner."""
        number = find_last_attempt(self._plan) if self._plan.sites and not begun else 0
        return RemoteAttempt(number, plan_of(number), {}) if number else None


def _start_agents(plan: CommandPlan, deadlines: Deadlines) -> Handle:
    """Start or adopt the agents. HostError if a host refuses, or a supervisor does not start its process."""
    stage_in(plan.sites)
    begun = [(block, block.submit) for block in plan.processes if block.submit]
    answers = processes.run_commands([(block.host, command) for block, command in begun])
    for (block, _), said in zip(begun, answers, strict=True):
        if isinstance(said, HostError):
            raise said
        if said["phase"] in ("failed", "starting"):
            raise HostError(block.host, f"start {block.name}", said.get("error") or "the supervisor does not answer")
    created = all(said["created"] for said in answers)
    submitted_at = min((said["started"] for said in answers if "started" in said), default=time.time())
    get_log().info("%s %s: %d agents", "started" if created else "attached to", plan.job, len(plan.processes))
    age = 0.0 if created else _seconds_since(submitted_at)
    return Handle(plan=plan, deadlines=deadlines, created=created, submitted_at=submitted_at, age_s=age)


def _remove_job(plan: CommandPlan) -> list[str]:
    """Stop everything, the store last, and remove what was staged in. Returns what is left."""
    said = {**_stop_processes(plan.processes), **_stop_processes((plan.store,) if plan.store else ())}
    # A host that cannot be asked counts as left over.
    left = {
        block.name: read_leftovers(block.host, said[block.name]) for block in plan.all_processes if block.name in said
    }
    unstaged = [block for block in plan.all_processes if _is_unstaged(said.get(block.name))]
    left |= end_unstaged(plan, unstaged)
    # A process that cannot be stopped keeps its folder.
    held = {block.host for block in plan.all_processes if left.get(block.name)}
    torn = {block.host for block in unstaged} - held
    whole = {block.host for block in plan.all_processes if block.site} - torn - held
    kept = [thing for things in left.values() for thing in things]
    return [*kept, *clean_up(plan, whole), *remove_remains(plan, torn)]


def _stop_processes(blocks: tuple[Process, ...]) -> dict[str, Any]:
    """Stop processes, all at once. Returns the answer of each, or the HostError in its place."""
    asked = [(block, block.cancel) for block in blocks if block.cancel]
    answers = processes.run_commands([(block.host, command) for block, command in asked], timeout=_STOP_TIMEOUT_S)
    return {block.name: answer for (block, _), answer in zip(asked, answers, strict=True)}


def _is_unstaged(answer: Any) -> bool:
    """Whether a host says that it has no supervisor of the run: its folder is absent, or a part of it was removed."""
    return isinstance(answer, dict) and answer.get("site") is False


def _seconds_since(since: float) -> float:
    return max(time.time() - since, 0.0)
