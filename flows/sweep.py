"""Removes what is left of runs whose launcher has been gone for longer than their lease."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from torchyard.common.escaping import escape_markdown, spell_anything, strip_control_codes
from torchyard.common.log import get_log
from torchyard.machines.orphan_processes import end_orphan_process, find_orphan_processes
from torchyard.model.errors import TorchyardError
from torchyard.run.folder import list_run_folders, runs_folder
from torchyard.run.sweep import is_run_open, sweep_run
from torchyard.steps.descriptors import raise_file_limit
from torchyard.tasks.flow_run.ownership import confirm_flow_run, read_liveness_by_name
from torchyard.tasks.flow_run.states import (
    build_final_state,
    delete_runs_with_same_end,
    read_liveness,
    report_end,
    report_state,
    reschedule_run,
)
from torchyard.tasks.recovery import recover_lost_runs


class AbandonedRun(NamedTuple):
    """A run without a launcher: where it left something, why that is removed or kept, and how to remove it."""

    run: str
    location: str
    reason: str
    remove: Callable[[], Sequence[str] | None]
    kept_reason: str = ""  # why it is not removed


@flow(name="sweep")
def sweep(
    dry_run: bool = False,
    runs: list[str] | None = None,
    without_lease: bool = False,
    contexts: list[str] | None = None,
) -> State[Any]:
    """Remove every job whose lease has ended and whose launcher is dead, on this machine's hosts and in clusters.

    A lost run whose lease has not ended is scheduled again, in case nothing else has noticed the loss.

    Args:
        dry_run: Only report what would be removed.
        runs: Only these runs, even before their leases have ended; a run with a living launcher is never removed.
        without_lease: Also objects in a cluster that carry a run's label and have no Lease; else they are only listed.
        contexts: The kubeconfig's contexts to search, in all namespaces; else the current one, if there is one.
    """
    raise_file_limit()
    requested_runs, faults = None if runs is None else frozenset(runs), list[str]()
    resumed_count = 0 if dry_run or runs is not None else _recover_runs(contexts, faults)
    abandoned_runs = [*_find_local_runs(requested_runs, faults), *_find_orphan_process_runs(requested_runs)]
    leftovers = [_remove_run(abandoned_run, dry_run) for abandoned_run in abandoned_runs]
    # This machine's runs are removed first; the rest is what other machines have left.
    for abandoned_run in _find_cluster_runs(contexts, requested_runs, without_lease, faults):
        abandoned_runs.append(abandoned_run)
        leftovers.append(_remove_run(abandoned_run, dry_run))
    _publish_table(abandoned_runs, ["; ".join(run_leftovers or ()) for run_leftovers in leftovers])
    faults += [leftover for run_leftovers in leftovers for leftover in run_leftovers or ()]
    faults += _describe_refusals(requested_runs, abandoned_runs, leftovers) if requested_runs else []
    end = _build_sweep_state(_format_summary(abandoned_runs, dry_run, resumed_count), faults)
    if end.message == _format_summary([], dry_run=False, resumed_count=0):
        delete_runs_with_same_end(end)
    return end


def sweep_machine() -> State[Any]:
    """Do this machine's part of a sweep, outside of any flow run: every machine's `make up` does so by itself."""
    faults = list[str]()
    recovery = recover_lost_runs(only_leased=True)
    abandoned_runs = [*_find_local_runs(None, faults), *_find_orphan_process_runs(None)]
    leftovers = [_remove_run(abandoned_run, dry_run=False) for abandoned_run in abandoned_runs]
    faults += [*recovery.faults, *(leftover for run_leftovers in leftovers for leftover in run_leftovers or ())]
    return _build_sweep_state(
        _format_summary(abandoned_runs, dry_run=False, resumed_count=len(recovery.resumed)), faults
    )


def _format_summary(abandoned_runs: Sequence[AbandonedRun], dry_run: bool, resumed_count: int) -> str:
    """What was done, in one line."""
    removed = [abandoned_run for abandoned_run in abandoned_runs if not abandoned_run.kept_reason]
    summary = f"swept {len(removed)} {'run' if len(removed) == 1 else 'runs'}" + (
        f", resumed {resumed_count}" if resumed_count else ""
    )
    if dry_run:
        summary = f"would remove {len(removed)}: " + ", ".join(removed_run.run for removed_run in removed)
    return summary + (
        f"; {len(abandoned_runs) - len(removed)} listed and kept" if len(abandoned_runs) > len(removed) else ""
    )


def _describe_refusals(
    requested_runs: frozenset[str], abandoned_runs: Sequence[AbandonedRun], leftovers: Sequence[Sequence[str] | None]
) -> list[str]:
    """Why named runs have not been removed."""
    owner_hint = "a living process owns it: cancel the run, or end that process"
    reasons = {
        (abandoned_run.run, abandoned_run.location): abandoned_run.kept_reason or owner_hint
        for abandoned_run, run_leftovers in zip(abandoned_runs, leftovers, strict=True)
        if abandoned_run.kept_reason or run_leftovers is None
    }
    removed = {
        abandoned_run.run
        for abandoned_run in abandoned_runs
        if (abandoned_run.run, abandoned_run.location) not in reasons
    }
    messages = [
        f"{run} in {location}: {reason}"
        for (run, location), reason in reasons.items()
        if run in requested_runs - removed
    ]
    missing = (
        requested_runs
        - {abandoned_run.run for abandoned_run in abandoned_runs}
        - {folder.name for folder in list_run_folders()}
    )  # those have ended
    return [*messages, *(f"there is no run {run} that this user may see" for run in sorted(missing))]


def _build_sweep_state(summary: str, faults: list[str]) -> State[Any]:
    faults = list(dict.fromkeys(faults))
    message = strip_control_codes(f"{summary}; left behind: {', '.join(faults)}" if faults else summary)
    return Failed(message=message) if faults else Completed(message=message)


def _recover_runs(contexts: list[str] | None, faults: list[str]) -> int:
    """Resume the runs that have lost their launcher and whose lease has not ended; returns how many."""
    recovery = recover_lost_runs(only_leased=True)
    faults += recovery.faults
    return len(recovery.resumed) + sum(map(reschedule_run, _find_unrenewed_runs(contexts)))


def _find_local_runs(requested_runs: frozenset[str] | None, faults: list[str]) -> Iterator[AbandonedRun]:
    """This machine's runs that are due for removal; one that cannot be read is added to `faults`."""
    for folder in list_run_folders():
        try:
            has_lease_ended = folder.lease_left() < 0
            if is_run_open(folder) and (has_lease_ended if requested_runs is None else folder.name in requested_runs):
                reason = "no launcher owns it" + (", and its lease has ended" if has_lease_ended else "")
                yield AbandonedRun(folder.name, "here", reason, partial(sweep_run, folder, "sweep", reason, report_end))
        except TorchyardError as error:
            faults.append(str(error))


def _find_orphan_process_runs(requested_runs: frozenset[str] | None) -> Iterator[AbandonedRun]:
    """Processes here whose run folder was removed, and whose supervisor is gone and cannot end them with the lease."""
    for orphan_process in find_orphan_processes(runs_folder()):
        if orphan_process.kept:
            get_log().warning("%s; its supervisor ends it with its lease", orphan_process)
        elif requested_runs is None or orphan_process.run in requested_runs:
            yield AbandonedRun(
                orphan_process.run,
                "here",
                "its folder was removed, and no supervisor is left",
                partial(end_orphan_process, orphan_process),
            )


def _find_unrenewed_runs(contexts: list[str] | None) -> set[str]:
    """The flow runs in clusters whose Lease has not ended and that may have no launcher."""
    from torchyard.cluster import orphans

    flow_run_ids: set[str] = set()
    for context in _list_contexts(contexts, []):
        with contextlib.suppress(TorchyardError):  # reported when the cluster is searched
            flow_run_ids.update(filter(None, map(confirm_flow_run, orphans.find_unrenewed_leases(context))))
    return flow_run_ids


def _list_contexts(contexts: list[str] | None, faults: list[str]) -> Iterator[str | None]:
    """The contexts that lead to a cluster; a named one that does not is a fault."""
    from torchyard.cluster import orphans

    candidates: Sequence[str | None] = contexts or (None,)
    for context in candidates:
        try:
            if orphans.has_cluster(context):
                yield context
        except TorchyardError as error:
            faults.append(str(error))


def _find_cluster_runs(
    contexts: list[str] | None, requested_runs: frozenset[str] | None, without_lease: bool, faults: list[str]
) -> Iterator[AbandonedRun]:
    """The runs that any machine has left in a cluster."""
    from torchyard.cluster import orphans

    scope = orphans.SweepScope(read_liveness, read_liveness_by_name, requested_runs, without_lease)
    for context in _list_contexts(contexts, faults):
        context_orphans: list[orphans.Orphan] = []
        try:
            context_orphans.extend(orphans.find_orphans(context, scope))  # all at once: they are watched in parallel
        except TorchyardError as error:
            faults.append(str(error))
        for orphan in context_orphans:
            yield AbandonedRun(
                orphan.run,
                f"namespace {orphan.server.namespace}",
                orphan.why,
                partial(_remove_orphan, orphan),
                orphan.kept,
            )


def _remove_orphan(orphan: Any) -> list[str] | None:
    """Remove a run from its cluster, and set its final state in Prefect, where it still waits for a worker."""
    from torchyard.cluster import orphans

    flow_run_id = confirm_flow_run(orphan.lease) if orphan.lease else ""
    leftovers = orphans.remove_orphan(orphan)
    if flow_run_id and leftovers is not None:
        report_state(flow_run_id, build_final_state("swept", f"no launcher owned it, and {orphan.why}"))
    return leftovers


def _remove_run(abandoned_run: AbandonedRun, dry_run: bool) -> Sequence[str] | None:
    """Remove one run unless it is kept; returns what is left, None if a living process owns the run."""
    if dry_run:
        return ()
    if abandoned_run.kept_reason:
        get_log().warning(
            "%s, %s: %s; not removed: %s",
            abandoned_run.run,
            abandoned_run.location,
            abandoned_run.reason,
            abandoned_run.kept_reason,
        )
        return ()
    try:
        leftovers = abandoned_run.remove()
    except TorchyardError as error:
        return [str(error)]
    if leftovers is not None:
        get_log().warning("%s, %s: %s; removed", abandoned_run.run, abandoned_run.location, abandoned_run.reason)
    return leftovers


def _publish_table(abandoned_runs: Sequence[AbandonedRun], leftovers: Sequence[str]) -> None:
    """Show the table in Prefect; an unreachable server costs only the table."""
    raw_rows = [
        {
            "run": abandoned_run.run,
            "where": abandoned_run.location,
            "why": abandoned_run.reason,
            "not removed": abandoned_run.kept_reason,
            "left": run_leftovers,
        }
        for abandoned_run, run_leftovers in zip(abandoned_runs, leftovers, strict=True)
    ]
    rows = [
        {key: escape_markdown(text) for key, text in row.items()} for row in raw_rows
    ]  # names and reasons come from Leases
    try:
        if rows:
            create_table_artifact(rows, key="sweep", description="Runs without a launcher")
    except Exception as error:
        get_log().warning("the table is not in Prefect: %s", error)


def main(argv: Sequence[str]) -> int:
    """`python flows/sweep.py [--dry-run] [--run NAME ...] [--without-lease] [--context NAME ...]`: the same flow.

    `python flows/sweep.py --here`: only this machine's runs, without a flow run.
    """
    parser = argparse.ArgumentParser(prog="flows/sweep.py", description=main.__doc__)
    parser.add_argument("--dry-run", action="store_true", help="only report what would be removed")
    parser.add_argument("--run", action="append", help="only this run, even before its lease has ended; repeatable")
    parser.add_argument("--without-lease", action="store_true", help="also objects whose run has no Lease")
    parser.add_argument("--context", action="append", help="a context of the kubeconfig; repeatable")
    parser.add_argument("--here", action="store_true", help="only this machine's runs, without a flow run in Prefect")
    args = parser.parse_args(argv)
    spell_anything()
    if args.here:
        raise_file_limit()
        state = sweep_machine()
    else:
        state = sweep(args.dry_run, args.run, args.without_lease, args.context, return_state=True)
    print(state.message)
    return 0 if state.is_completed() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
