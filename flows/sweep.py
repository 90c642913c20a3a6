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
    delete_like_runs,
    final_state,
    read_liveness,
    report_end,
    report_state,
    reschedule_run,
)
from torchyard.tasks.recovery import recover_lost_runs


class AbandonedRun(NamedTuple):
    """A run without a launcher: where it left something, why that is removed or kept, and how to remove it."""

    run: str
    where: str
    why: str
    remove: Callable[[], Sequence[str] | None]
    kept: str = ""  # why it is not removed


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
    named, faults = None if runs is None else frozenset(runs), list[str]()
    back = 0 if dry_run or runs is not None else _recover_runs(contexts, faults)
    found = [*_find_local_runs(named, faults), *_find_stray_runs(named)]
    left = [_remove_run(each, dry_run) for each in found]
    # This machine's runs are removed first; the rest is what other machines have left.
    for each in _find_cluster_runs(contexts, named, without_lease, faults):
        found.append(each)
        left.append(_remove_run(each, dry_run))
    _show_table(found, ["; ".join(each or ()) for each in left])
    faults += [thing for things in left for thing in things or ()]
    faults += _explain_refusals(named, found, left) if named else []
    end = _sweep_state(_format_summary(found, dry_run, back), faults)
    if end.message == _format_summary([], dry_run=False, back=0):
        delete_like_runs(end)
    return end


def sweep_here() -> State[Any]:
    """Do this machine's part of a sweep, outside of any flow run: every machine's `make up` does so by itself."""
    faults = list[str]()
    looked = recover_lost_runs(leased=True)
    found = [*_find_local_runs(None, faults), *_find_stray_runs(None)]
    left = [_remove_run(each, dry_run=False) for each in found]
    faults += [*looked.faults, *(thing for things in left for thing in things or ())]
    return _sweep_state(_format_summary(found, dry_run=False, back=len(looked.back)), faults)


def _format_summary(found: Sequence[AbandonedRun], dry_run: bool, back: int) -> str:
    """What was done, in one line."""
    taken = [each for each in found if not each.kept]
    said = f"swept {len(taken)} {'run' if len(taken) == 1 else 'runs'}" + (f", resumed {back}" if back else "")
    if dry_run:
        said = f"would remove {len(taken)}: " + ", ".join(each.run for each in taken)
    return said + (f"; {len(found) - len(taken)} listed and kept" if len(found) > len(taken) else "")


def _explain_refusals(
    named: frozenset[str], found: Sequence[AbandonedRun], left: Sequence[Sequence[str] | None]
) -> list[str]:
    """Why named runs have not been removed."""
    carried = "a living process owns it: cancel the run, or end that process"
    why = {
        (each.run, each.where): each.kept or carried
        for each, rest in zip(found, left, strict=True)
        if each.kept or rest is None
    }
    gone = {each.run for each in found if (each.run, each.where) not in why}
    stay = [f"{run} in {where}: {said}" for (run, where), said in why.items() if run in named - gone]
    missing = named - {each.run for each in found} - {folder.name for folder in list_run_folders()}  # those have ended
    return [*stay, *(f"there is no run {run} that this user may see" for run in sorted(missing))]


def _sweep_state(said: str, faults: list[str]) -> State[Any]:
    faults = list(dict.fromkeys(faults))
    told = strip_control_codes(f"{said}; left behind: {', '.join(faults)}" if faults else said)
    return Failed(message=told) if faults else Completed(message=told)


def _recover_runs(contexts: list[str] | None, faults: list[str]) -> int:
    """Resume the runs that have lost their launcher and whose lease has not ended; returns how many."""
    looked = recover_lost_runs(leased=True)
    faults += looked.faults
    return len(looked.back) + sum(map(reschedule_run, _find_unrenewed_runs(contexts)))


def _find_local_runs(named: frozenset[str] | None, faults: list[str]) -> Iterator[AbandonedRun]:
    """This machine's runs that are due for removal; one that cannot be read is added to `faults`."""
    for folder in list_run_folders():
        try:
            over = folder.lease_left() < 0
            if is_run_open(folder) and (over if named is None else folder.name in named):
                why = "no launcher owns it" + (", and its lease has ended" if over else "")
                yield AbandonedRun(folder.name, "here", why, partial(sweep_run, folder, "sweep", why, report_end))
        except TorchyardError as error:
            faults.append(str(error))


def _find_stray_runs(named: frozenset[str] | None) -> Iterator[AbandonedRun]:
    """Processes here whose run folder was removed, and whose supervisor is gone and cannot end them with the lease."""
    for stray in find_orphan_processes(runs_folder()):
        if stray.kept:
            get_log().warning("%s; its supervisor ends it with its lease", stray)
        elif named is None or stray.run in named:
            yield AbandonedRun(
                stray.run,
                "here",
                "its folder was removed, and no supervisor is left",
                partial(end_orphan_process, stray),
            )


def _find_unrenewed_runs(contexts: list[str] | None) -> set[str]:
    """The flow runs in clusters whose Lease has not ended and that may have no launcher."""
    from torchyard.cluster import orphans

    found: set[str] = set()
    for context in _list_contexts(contexts, []):
        with contextlib.suppress(TorchyardError):  # reported when the cluster is searched
            found.update(filter(None, map(confirm_flow_run, orphans.find_unrenewed_leases(context))))
    return found


def _list_contexts(contexts: list[str] | None, faults: list[str]) -> Iterator[str | None]:
    """The contexts that lead to a cluster; a named one that does not is a fault."""
    from torchyard.cluster import orphans

    wanted: Sequence[str | None] = contexts or (None,)
    for context in wanted:
        try:
            if orphans.has_cluster(context):
                yield context
        except TorchyardError as error:
            faults.append(str(error))


def _find_cluster_runs(
    contexts: list[str] | None, named: frozenset[str] | None, without_lease: bool, faults: list[str]
) -> Iterator[AbandonedRun]:
    """The runs that any machine has left in a cluster."""
    from torchyard.cluster import orphans

    terms = orphans.SweepScope(read_liveness, read_liveness_by_name, named, without_lease)
    for context in _list_contexts(contexts, faults):
        found: list[orphans.Orphan] = []
        try:
            found.extend(orphans.find_orphans(context, terms))  # all at once: they are watched in parallel
        except TorchyardError as error:
            faults.append(str(error))
        for each in found:
            yield AbandonedRun(
                each.run, f"namespace {each.server.namespace}", each.why, partial(_clear_orphan, each), each.kept
            )


def _clear_orphan(orphan: Any) -> list[str] | None:
    """Remove a run from its cluster, and set its final state in Prefect, where it still waits for a worker."""
    from torchyard.cluster import orphans

    flow_run = confirm_flow_run(orphan.lease) if orphan.lease else ""
    left = orphans.remove_orphan(orphan)
    if flow_run and left is not None:
        report_state(flow_run, final_state("swept", f"no launcher owned it, and {orphan.why}"))
    return left


def _remove_run(due: AbandonedRun, dry_run: bool) -> Sequence[str] | None:
    """Remove one run unless it is kept; returns what is left, None if a living process owns the run."""
    if dry_run:
        return ()
    if due.kept:
        get_log().warning("%s, %s: %s; not removed: %s", due.run, due.where, due.why, due.kept)
        return ()
    try:
        left = due.remove()
    except TorchyardError as error:
        return [str(error)]
    if left is not None:
        get_log().warning("%s, %s: %s; removed", due.run, due.where, due.why)
    return left


def _show_table(due: Sequence[AbandonedRun], left: Sequence[str]) -> None:
    """Show the table in Prefect; an unreachable server costs only the table."""
    told = [
        {"run": each.run, "where": each.where, "why": each.why, "not removed": each.kept, "left": rest}
        for each, rest in zip(due, left, strict=True)
    ]
    rows = [
        {key: escape_markdown(text) for key, text in row.items()} for row in told
    ]  # names and reasons come from Leases
    try:
        if rows:
            create_table_artifact(rows, key="sweep", description="Runs without a launcher")
    except Exception as error:
        get_log().warning("the table is not in Prefect: %s", error)


def main(words: Sequence[str]) -> int:
    """`python flows/sweep.py [--dry-run] [--run NAME ...] [--without-lease] [--context NAME ...]`: the same flow.

    `python flows/sweep.py --here`: only this machine's runs, without a flow run.
    """
    parser = argparse.ArgumentParser(prog="flows/sweep.py", description=main.__doc__)
    parser.add_argument("--dry-run", action="store_true", help="only report what would be removed")
    parser.add_argument("--run", action="append", help="only this run, even before its lease has ended; repeatable")
    parser.add_argument("--without-lease", action="store_true", help="also objects whose run has no Lease")
    parser.add_argument("--context", action="append", help="a context of the kubeconfig; repeatable")
    parser.add_argument("--here", action="store_true", help="only this machine's runs, without a flow run in Prefect")
    asked = parser.parse_args(words)
    spell_anything()
    if asked.here:
        raise_file_limit()
        end = sweep_here()
    else:
        end = sweep(asked.dry_run, asked.run, asked.without_lease, asked.context, return_state=True)
    print(end.message)
    return 0 if end.is_completed() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
