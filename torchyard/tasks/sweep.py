"""Removes the leftovers of runs that have lost their launcher for longer than their lease.

A sweep continues after a fault: what cannot be read or removed is collected in a list `faults`, and the sweep's final
state is Failed with their messages.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from torchyard.assembly import sweep_run
from torchyard.common.escaping import escape_markdown, strip_control_codes
from torchyard.common.log import get_log
from torchyard.machines.orphan_processes import end_orphan_process, find_orphan_processes
from torchyard.model.errors import TorchyardError
from torchyard.model.run import RunEnd
from torchyard.run.folder import RunFolder, list_run_folders, runs_folder
from torchyard.run.sweep import is_run_open
from torchyard.sinks.late_messages import send_late_messages
from torchyard.sinks.late_metrics import send_late_metrics
from torchyard.steps.descriptors import raise_file_limit

from .flow_run.late_reports import publish_late_pages
from .flow_run.ownership import confirm_flow_run, read_liveness_by_name
from .flow_run.states import (
    build_final_state,
    delete_runs_with_same_end,
    read_liveness,
    read_reported_end,
    report_end,
    report_state,
    reschedule_run,
)
from .recovery import recover_lost_runs

if TYPE_CHECKING:
    from torchyard.cluster.orphans import Orphan


class AbandonedRun(NamedTuple):
    """The leftovers of a run without a launcher, in one location.

    run: the run's name.
    location: `here` or `namespace ml`.
    reason: why it counts as abandoned.
    remove: removes it and returns the leftovers that remain; None if a living process owns the run. It may raise
        TorchyardError.
    kept_reason: why it is only listed; None if it is removed.
    """

    run: str
    location: str
    reason: str
    remove: Callable[[], Sequence[str] | None]
    kept_reason: str | None = None


def sweep_lost_runs(
    *,
    dry_run: bool = False,
    runs: list[str] | None = None,
    without_lease: bool = False,
    contexts: list[str] | None = None,
) -> State[Any]:
    """Sweep this machine and the clusters (flows/sweep.py explains the parameters); return the sweep's final state."""
    raise_file_limit()
    requested_runs = None if runs is None else frozenset(runs)
    faults: list[str] = []
    resumed_count = 0 if dry_run or runs is not None else _recover_runs(contexts, faults)

    # This machine's runs are removed first; what remains in the clusters was left by other machines.
    abandoned_runs = [*find_local_runs(requested_runs, faults), *find_orphan_process_runs(requested_runs)]
    leftovers = [remove_run(run, dry_run=dry_run) for run in abandoned_runs]
    for run in find_cluster_runs(contexts, requested_runs, faults, without_lease=without_lease):
        abandoned_runs.append(run)
        leftovers.append(remove_run(run, dry_run=dry_run))

    _deliver_late_items()  # last: a receiver that hangs must not delay the recovery of a run
    _publish_table(abandoned_runs, leftovers)
    faults += _flatten(leftovers)
    if requested_runs:
        faults += describe_refusals(requested_runs, abandoned_runs, leftovers)
    state = build_sweep_state(format_summary(abandoned_runs, resumed_count, dry_run=dry_run), faults)
    if state.message == format_summary([], resumed_count=0, dry_run=False):
        delete_runs_with_same_end(state)
    return state


def sweep_machine() -> State[Any]:
    """Do this machine's part of a sweep without a flow run, as every machine's `make up` does regularly."""
    raise_file_limit()
    faults: list[str] = []
    recovery = recover_lost_runs(only_leased=True)
    abandoned_runs = [*find_local_runs(None, faults), *find_orphan_process_runs(None)]
    leftovers = [remove_run(run, dry_run=False) for run in abandoned_runs]
    _deliver_late_items()
    faults += recovery.faults
    faults += _flatten(leftovers)
    return build_sweep_state(format_summary(abandoned_runs, len(recovery.resumed), dry_run=False), faults)


def _deliver_late_items() -> None:
    """Deliver what ended runs of this machine could not. Nothing is raised; a receiver that fails costs a try."""
    publish_late_pages()
    send_late_messages()
    send_late_metrics()


def _flatten(leftovers: Sequence[Sequence[str] | None]) -> Iterator[str]:
    for run_leftovers in leftovers:
        yield from run_leftovers or ()


def format_summary(abandoned_runs: Sequence[AbandonedRun], resumed_count: int, *, dry_run: bool) -> str:
    """What the sweep did, in one line: `swept 2 runs, resumed 1; 1 listed and kept`."""
    removed_names = [run.run for run in abandoned_runs if run.kept_reason is None]
    kept_count = len(abandoned_runs) - len(removed_names)
    if dry_run:
        summary = f"would remove {len(removed_names)}: {', '.join(removed_names)}"
    else:
        noun = "run" if len(removed_names) == 1 else "runs"
        summary = f"swept {len(removed_names)} {noun}"
        if resumed_count:
            summary += f", resumed {resumed_count}"
    if kept_count:
        summary += f"; {kept_count} listed and kept"
    return summary


def describe_refusals(
    requested_runs: frozenset[str], abandoned_runs: Sequence[AbandonedRun], leftovers: Sequence[Sequence[str] | None]
) -> list[str]:
    """A message for each requested run that was not removed, with the reason.

    A run that was removed in one location and refused in another, as after a move, is not reported.
    """
    reasons: dict[tuple[str, str], str] = {}  # by run and location
    for run, run_leftovers in zip(abandoned_runs, leftovers, strict=True):
        if run.kept_reason is not None:
            reasons[run.run, run.location] = run.kept_reason
        elif run_leftovers is None:
            reasons[run.run, run.location] = "a living process owns it: cancel the run, or end that process"
    removed = {run.run for run in abandoned_runs if (run.run, run.location) not in reasons}

    messages: list[str] = []
    for (name, location), reason in reasons.items():
        if name in requested_runs - removed:
            messages.append(f"{name} in {location}: {reason}")
    listing_faults: list[str] = []
    ended = {folder.name for folder in _list_folders(listing_faults)}  # those that are not abandoned have ended
    if not listing_faults:  # a list that failed does not prove that there is no such run
        missing = requested_runs - {run.run for run in abandoned_runs} - ended
        messages += [f"there is no run {name} that this user may see" for name in sorted(missing)]
    return messages


def build_sweep_state(summary: str, faults: list[str]) -> State[Any]:
    """Failed with the faults, each once, after the summary; Completed if there are none."""
    if not faults:
        return Completed(message=strip_control_codes(summary))
    return Failed(message=strip_control_codes(f"{summary}; left behind: {', '.join(dict.fromkeys(faults))}"))


def _recover_runs(contexts: list[str] | None, faults: list[str]) -> int:
    """Resume the runs that have lost their launcher and whose lease has not ended; return how many."""
    recovery = recover_lost_runs(only_leased=True)
    faults += recovery.faults
    return len(recovery.resumed) + sum(map(reschedule_run, _find_unrenewed_runs(contexts)))


def find_local_runs(requested_runs: frozenset[str] | None, faults: list[str]) -> Iterator[AbandonedRun]:
    """This machine's open runs that are requested or, by default, whose lease has ended.

    A folder that cannot be read adds a message to `faults`.
    """
    for folder in _list_folders(faults):
        try:
            has_lease_ended = folder.remaining_lease_s() < 0
            is_due = has_lease_ended if requested_runs is None else folder.name in requested_runs
            if is_run_open(folder) and is_due:
                reason = "no launcher owns it"
                if has_lease_ended:
                    reason += ", and its lease has ended"
                remove = partial(_sweep_folder, folder, reason, only_expired=requested_runs is None)
                yield AbandonedRun(folder.name, "here", reason, remove)
        except TorchyardError as error:
            faults.append(str(error))


def _sweep_folder(folder: RunFolder, reason: str, *, only_expired: bool) -> tuple[str, ...] | None:
    """Sweep a run of this machine. If another one has ended it meanwhile, that end is kept, and nothing is reported.

    Raises PrefectError if Prefect, which knows the end, cannot be queried.
    """
    reported_end = read_reported_end(folder.read_record().flow_run_id)
    end = reported_end or RunEnd("swept", reason)
    return sweep_run(
        folder, "sweep", end, report_end, only_expired=only_expired, is_end_reported=reported_end is not None
    )


def _list_folders(faults: list[str]) -> list[RunFolder]:
    """The folders of this machine's runs; none, and a message in `faults`, if they cannot be listed."""
    try:
        return list_run_folders()
    except TorchyardError as error:
        faults.append(str(error))
        return []


def find_orphan_process_runs(requested_runs: frozenset[str] | None) -> Iterator[AbandonedRun]:
    """The runs of processes on this machine whose run folder was removed and whose supervisor has exited.

    Processes that still have a supervisor are only logged: it ends them when the lease ends.
    """
    for orphan_process in find_orphan_processes(runs_folder()):
        if orphan_process.is_supervised:
            get_log().warning("%s; its supervisor ends it with its lease", orphan_process)
        elif requested_runs is None or orphan_process.run in requested_runs:
            yield AbandonedRun(
                orphan_process.run,
                "here",
                "its folder was removed, and its supervisor has exited",
                partial(end_orphan_process, orphan_process),
            )


def _find_unrenewed_runs(contexts: list[str] | None) -> set[str]:
    """The ids of flow runs in clusters whose Lease has not ended and that may have no launcher."""
    from torchyard.cluster import orphans

    flow_run_ids: set[str] = set()
    for context in _list_contexts(contexts, []):
        with contextlib.suppress(TorchyardError):  # reported when the cluster is searched
            flow_run_ids.update(filter(None, map(confirm_flow_run, orphans.find_unrenewed_leases(context))))
    return flow_run_ids


def _list_contexts(contexts: list[str] | None, faults: list[str]) -> Iterator[str | None]:
    """The contexts that lead to a cluster; None is the current one. A context that fails adds a message to `faults`."""
    from torchyard.cluster import orphans

    candidates: Sequence[str | None] = contexts or (None,)
    for context in candidates:
        try:
            if orphans.has_cluster(context):
                yield context
        except TorchyardError as error:
            faults.append(str(error))


def find_cluster_runs(
    contexts: list[str] | None, requested_runs: frozenset[str] | None, faults: list[str], *, without_lease: bool
) -> Iterator[AbandonedRun]:
    """The runs that any machine has left in a cluster; a cluster that cannot be searched adds to `faults`."""
    from torchyard.cluster import orphans

    scope = orphans.SweepScope(read_liveness, read_liveness_by_name, requested_runs, without_lease)
    for context in _list_contexts(contexts, faults):
        context_orphans: list[orphans.Orphan] = []
        try:
            # All before the first removal: their Leases are watched in parallel.
            context_orphans.extend(orphans.find_orphans(context, scope))
        except TorchyardError as error:
            faults.append(str(error))
        for orphan in context_orphans:
            yield AbandonedRun(
                orphan.run,
                f"namespace {orphan.client.namespace}",
                orphan.reason,
                partial(remove_orphan, orphan),
                orphan.kept_reason,
            )


def remove_orphan(orphan: "Orphan") -> list[str] | None:
    """Remove a run from its cluster, and set the final state of its flow run, which may still wait for a worker.

    Prefect is not changed unless it confirms that the flow run belongs to the Lease. Returns the leftovers; None if a
    living process owns the run.
    """
    from torchyard.cluster import orphans

    flow_run_id = confirm_flow_run(orphan.lease) if orphan.lease else None
    leftovers = orphans.remove_orphan(orphan)
    if flow_run_id and leftovers is not None:
        report_state(flow_run_id, build_final_state("swept", f"no launcher owned it, and {orphan.reason}"))
    return leftovers


def remove_run(run: AbandonedRun, *, dry_run: bool) -> Sequence[str] | None:
    """Remove one run unless it is kept; return its leftovers, None if a living process owns the run."""
    if dry_run:
        return ()
    if run.kept_reason is not None:
        get_log().warning("%s, %s: %s; not removed: %s", run.run, run.location, run.reason, run.kept_reason)
        return ()
    try:
        leftovers = run.remove()
    except TorchyardError as error:
        return [str(error)]
    except Exception as error:  # the other runs are swept in any case
        get_log().exception("cannot remove %s, %s", run.run, run.location)
        return [f"{run.run}, {run.location}: {error}"]
    if leftovers is not None:
        get_log().warning("%s, %s: %s; removed", run.run, run.location, run.reason)
    return leftovers


def _publish_table(abandoned_runs: Sequence[AbandonedRun], leftovers: Sequence[Sequence[str] | None]) -> None:
    """Publish the table in Prefect; an unreachable server costs only the table."""
    rows: list[dict[str, str]] = []
    for run, run_leftovers in zip(abandoned_runs, leftovers, strict=True):
        row = {
            "run": run.run,
            "where": run.location,
            "why": run.reason,
            "not removed": run.kept_reason or "",
            "left": "; ".join(run_leftovers or ()),
        }
        # Names and reasons come from Leases, which others may write.
        rows.append({column: escape_markdown(text) for column, text in row.items()})
    try:
        if rows:
            create_table_artifact(rows, key="sweep", description="Runs without a launcher")
    except Exception as error:
        get_log().warning("cannot publish the table in Prefect: %s", error)
