"""A plan of processes, carried out on this machine and on hosts behind ssh."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from torchyard.backend import Elsewhere, Poll
from torchyard.common.log import log
from torchyard.machines import processes, store
from torchyard.machines.checks import check_hosts
from torchyard.machines.job_watch import Watch
from torchyard.machines.staging import end_unplaced, latest, place, things_left, vacate
from torchyard.model.errors import HostError
from torchyard.model.plan import Block, CommandPlan, Plan
from torchyard.model.profile import Deadlines
from torchyard.model.requirements import Check
from torchyard.model.run import End, Handle

STOP_TIMEOUT_S = 120  # a process's grace among it


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
        store.start(self._plan)

    def submit(self, deadlines: Deadlines, since: float | None) -> Handle:
        if since is None:
            return start(self._plan, deadlines)
        # Its hosts are asked by whoever waits for it: one that is away now does not hold up the others.
        log().info("attached to %s: %d agents", self._plan.job, len(self._plan.on))
        return Handle(plan=self._plan, deadlines=deadlines, created=False, submitted_at=since, age=_age(since))

    def watch(self, on_poll: Poll) -> Watch:
        return Watch(self._plan.on, self._plan.store)

    def stop(self) -> None:
        _stop_blocks(self._plan.on)

    def remove(self) -> list[str]:
        return remove(self._plan)

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

    def take_over(self, plan_of: Callable[[int], Plan], begun: Sequence[int]) -> Elsewhere | None:
        """Where nothing is known here, the hosts know the latest attempt: each site says which machine carries it."""
        number = latest(self._plan) if self._plan.sites and not begun else 0
        return Elsewhere(number, plan_of(number), {}) if number else None


def start(plan: CommandPlan, deadlines: Deadlines) -> Handle:
    """The agents, started or found. HostError where a host refuses, or a keeper does not start its process."""
    place(plan.sites)
    begun = [(block, block.submit) for block in plan.on if block.submit]
    answers = processes.call_each([(block.host, command) for block, command in begun])
    for (block, _), said in zip(begun, answers, strict=True):
        if isinstance(said, HostError):
            raise said
        if said["phase"] in ("failed", "starting"):
            raise HostError(block.host, f"start {block.name}", said.get("error") or "the keeper does not answer")
    created = all(said["created"] for said in answers)
    submitted_at = min((said["started"] for said in answers if "started" in said), default=time.time())
    log().info("%s %s: %d agents", "started" if created else "attached to", plan.job, len(plan.on))
    age = 0.0 if created else _age(submitted_at)
    return Handle(plan=plan, deadlines=deadlines, created=created, submitted_at=submitted_at, age=age)


def remove(plan: CommandPlan) -> list[str]:
    """Stop everything, the store last, and take what was brought off the hosts; what is left."""
    said = {**_stop_blocks(plan.on), **_stop_blocks((plan.store,) if plan.store else ())}
    # A host that cannot be asked counts as left.
    left = {block.name: things_left(block.host, said[block.name]) for block in plan.blocks if block.name in said}
    left |= end_unplaced(plan, [block for block in plan.blocks if _is_unplaced(said.get(block.name))])
    # What cannot be stopped keeps its folder; what never had one needs no more asking.
    sites = {block.host for block in plan.blocks if block.site and not left[block.name]}
    held = {block.host for block in plan.blocks if left.get(block.name) or _is_unplaced(said.get(block.name))}
    return [*(thing for things in left.values() for thing in things), *vacate(plan, sites - held)]


def _stop_blocks(blocks: tuple[Block, ...]) -> dict[str, Any]:
    """Stop blocks, all at once: what each of them answers, or the HostError in its place."""
    told = [(block, block.cancel) for block in blocks if block.cancel]
    answers = processes.call_each([(block.host, command) for block, command in told], timeout=STOP_TIMEOUT_S)
    return {block.name: answer for (block, _), answer in zip(told, answers, strict=True)}


def _is_unplaced(answer: Any) -> bool:
    """Whether a host says that no folder of the run is there."""
    return isinstance(answer, dict) and answer.get("site") is False


def _age(since: float) -> float:
    return max(time.time() - since, 0.0)
