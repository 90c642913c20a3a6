"""A run as a row of the list, from its summary and the plan of its last attempt: pure functions."""

from typing import cast, get_args

from torchyard.listing.listed_run import ListedRun, RunState, Source
from torchyard.listing.run_summaries import RunSummary
from torchyard.model.plan import CommandPlan, Plan
from torchyard.model.requirements import THIS_MACHINE

_MAX_HOSTS = 3  # that a location names
_STATES = frozenset(get_args(RunState))


def build_row(summary: RunSummary, plan: Plan | None, note: str, source: Source = "folder") -> ListedRun:
    """A run as a row. `plan`: of its last attempt; None if it has none, or if it cannot be read."""
    is_known = summary.state in _STATES
    return ListedRun(
        name=summary.run,
        state=cast(RunState, summary.state) if is_known else "unreadable",
        is_over=not summary.is_open,
        note=note if is_known else f"its journal has an unknown end: {summary.state}",
        profile=summary.profile,
        launcher=summary.launcher,
        location=describe_location(plan, summary.host) if plan else "",
        nodes=len(plan.nodes) if plan else None,
        processes=summary.processes,
        started_at=summary.started_at,
        ended_at=summary.ended_at,
        user=summary.user,
        host=summary.host,
        source=source,
    )


def describe_location(plan: Plan, launcher_host: str) -> str:
    """Where the job of a plan runs: `CONTEXT/NAMESPACE`, or its hosts. `launcher_host`: the name of localhost."""
    if not isinstance(plan, CommandPlan):
        cluster_names = (plan.cluster.context, plan.cluster.namespace)
        return "/".join(name for name in cluster_names if name)
    names: dict[str, None] = {}  # each host once, in the order of the nodes
    for process in plan.processes:
        is_local = process.host in THIS_MACHINE and launcher_host
        names[launcher_host if is_local else process.host] = None
    suffix = f" and {len(names) - _MAX_HOSTS} more" if len(names) > _MAX_HOSTS else ""
    return ", ".join(list(names)[:_MAX_HOSTS]) + suffix
