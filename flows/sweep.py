"""Removes what runs left behind whose launcher is gone for longer than their lease."""

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

from tasks.flow_runs import alive_by_name, named_by
from tasks.flow_states import alive, ended, revive, tell, tell_end
from tasks.recovery import bring_back
from torchyard.common.escaping import markdown, plain, spell_anything
from torchyard.common.log import log
from torchyard.machines.strays import end_stray, strays
from torchyard.model.errors import TorchyardError
from torchyard.run.folder import all_runs, runs
from torchyard.run.sweep import is_open, sweep_run
from torchyard.steps.descriptors import raise_limit


class Due(NamedTuple):
    """A run that nobody looks after: where it has something, why it goes or stays, and how to remove it."""

    run: str
    where: str
    why: str
    remove: Callable[[], Sequence[str] | None]
    kept: str = ""  # why it stays


@flow(name="sweep")
def sweep(
    dry_run: bool = False,
    runs: list[str] | None = None,
    without_lease: bool = False,
    contexts: list[str] | None = None,
) -> State[Any]:
    """Take away every job whose lease has ended and whose launcher is dead, on this machine's hosts and in clusters.

    A run that is lost, and whose lease lasts, is scheduled again: nobody else may have seen that.

    Args:
        dry_run: Only say what would be removed.
        runs: These runs and no others, also before their leases have ended; a living launcher's run stays all the same.
        without_lease: Objects in a cluster too that carry a run's label and have no Lease; else they are only listed.
        contexts: The kubeconfig's contexts to look through, in all namespaces; else the current one, if there is one.
    """
    raise_limit()
    named, faults = None if runs is None else frozenset(runs), list[str]()
    back = 0 if dry_run or runs is not None else revive_lost(contexts, faults)
    found = [*folders(named, faults), *without_folder(named)]
    left = [remove(each, dry_run) for each in found]
    # What is here is removed first: the rest is what other machines have left.
    for each in in_clusters(contexts, named, without_lease, faults):
        found.append(each)
        left.append(remove(each, dry_run))
    show(found, ["; ".join(each or ()) for each in left])
    faults += [thing for things in left for thing in things or ()]
    faults += refused(named, found, left) if named else []
    return close(summary(found, dry_run, back), faults)


def summary(found: Sequence[Due], dry_run: bool, back: int) -> str:
    """What was done, in a line."""
    taken = [each for each in found if not each.kept]
    said = f"looked after {len(taken)} runs" + (f", brought {back} back" if back else "")
    if dry_run:
        said = f"would remove {len(taken)}: " + ", ".join(each.run for each in taken)
    return said + (f"; {len(found) - len(taken)} are listed and stay" if len(found) > len(taken) else "")


def refused(named: frozenset[str], found: Sequence[Due], left: Sequence[Sequence[str] | None]) -> list[str]:
    """Why runs that were named are still there."""
    carried = "a living process carries it: cancel the run, or end that process"
    why = {
        (each.run, each.where): each.kept or carried
        for each, rest in zip(found, left, strict=True)
        if each.kept or rest is None
    }
    gone = {each.run for each in found if (each.run, each.where) not in why}
    stay = [f"{run} in {where}: {said}" for (run, where), said in why.items() if run in named - gone]
    missing = named - {each.run for each in found} - {folder.name for folder in all_runs()}  # those have ended
    return [*stay, *(f"there is no run {run} that this user may see" for run in sorted(missing))]


def close(said: str, faults: list[str]) -> State[Any]:
    faults = list(dict.fromkeys(faults))
    told = plain(f"{said}; left behind: {', '.join(faults)}" if faults else said)
    return Failed(message=told) if faults else Completed(message=told)


def revive_lost(contexts: list[str] | None, faults: list[str]) -> int:
    """Bring back the runs that have lost their launcher and whose lease lasts: how many."""
    looked = bring_back(leased=True)
    faults += looked.faults
    return len(looked.back) + sum(map(revive, silent(contexts)))


def folders(named: frozenset[str] | None, faults: list[str]) -> Iterator[Due]:
    """The runs that this machine has carried; one that cannot be read is a fault of its own."""
    for folder in all_runs():
        try:
            over = folder.lease_left() < 0
            if is_open(folder) and (over if named is None else folder.name in named):
                why = "no launcher carries it" + (", and its lease has ended" if over else "")
                yield Due(folder.name, "here", why, partial(sweep_run, folder, "sweep", why, tell_end))
        except TorchyardError as error:
            faults.append(str(error))


def without_folder(named: frozenset[str] | None) -> Iterator[Due]:
    """Processes here whose run folder was removed: a keeper ends its own with the lease, and nobody ends the rest."""
    for stray in strays(runs()):
        if stray.kept:
            log().warning("%s; its keeper ends it with its lease", stray)
        elif named is None or stray.run in named:
            yield Due(stray.run, "here", "its folder was removed, and no keeper is left", partial(end_stray, stray))


def silent(contexts: list[str] | None) -> set[str]:
    """The flow runs in clusters whose Lease lasts, and that may have no launcher."""
    from torchyard.cluster import orphans

    found: set[str] = set()
    for context in clusters(contexts, []):
        with contextlib.suppress(TorchyardError):  # told where it is looked through
            found.update(filter(None, map(named_by, orphans.silent(context))))
    return found


def clusters(contexts: list[str] | None, faults: list[str]) -> Iterator[str | None]:
    """The contexts that lead to a cluster; one that is named, and does not, is a fault."""
    from torchyard.cluster import orphans

    wanted: Sequence[str | None] = contexts or (None,)
    for context in wanted:
        try:
            if orphans.has_cluster(context):
                yield context
        except TorchyardError as error:
            faults.append(str(error))


def in_clusters(
    contexts: list[str] | None, named: frozenset[str] | None, without_lease: bool, faults: list[str]
) -> Iterator[Due]:
    """The runs that any machine has left in a cluster."""
    from torchyard.cluster import orphans

    terms = orphans.Terms(alive, alive_by_name, named, without_lease)
    for context in clusters(contexts, faults):
        found: list[orphans.Orphan] = []
        try:
            found.extend(orphans.orphans(context, terms))  # all at once: they are watched side by side
        except TorchyardError as error:
            faults.append(str(error))
        for each in found:
            yield Due(each.run, f"namespace {each.server.namespace}", each.why, partial(clear, each), each.kept)


def clear(orphan: Any) -> list[str] | None:
    """Remove a run from its cluster, and tell Prefect, where it still waits for a worker."""
    from torchyard.cluster import orphans

    flow_run = named_by(orphan.lease) if orphan.lease else ""
    left = orphans.remove(orphan)
    if flow_run and left is not None:
        tell(flow_run, ended("swept", f"no launcher carried it, and {orphan.why}"))
    return left


def remove(due: Due, dry_run: bool) -> Sequence[str] | None:
    """What is left of one run; None of one that a living process carries. What stays is not touched."""
    if dry_run:
        return ()
    if due.kept:
        log().warning("%s, %s: %s; not removed: %s", due.run, due.where, due.why, due.kept)
        return ()
    try:
        left = due.remove()
    except TorchyardError as error:
        return [str(error)]
    if left is not None:
        log().warning("%s, %s: %s; removed", due.run, due.where, due.why)
    return left


def show(due: Sequence[Due], left: Sequence[str]) -> None:
    """The table in Prefect; a server that is away costs the table alone."""
    told = [
        {"run": each.run, "where": each.where, "why": each.why, "not removed": each.kept, "left": rest}
        for each, rest in zip(due, left, strict=True)
    ]
    rows = [{key: markdown(text) for key, text in row.items()} for row in told]  # names and reasons are out of Leases
    try:
        if rows:
            create_table_artifact(rows, key="sweep", description="Runs that nobody looked after")
    except Exception as error:
        log().warning("the table is not in Prefect: %s", error)


def main(words: Sequence[str]) -> int:
    """`python flows/sweep.py [--dry-run] [--run NAME ...] [--without-lease] [--context NAME ...]`: the same flow."""
    parser = argparse.ArgumentParser(prog="flows/sweep.py", description=main.__doc__)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.add_argument("--run", action="append", help="this run alone, also before its lease has ended; repeatable")
    parser.add_argument("--without-lease", action="store_true", help="also objects whose run has no Lease")
    parser.add_argument("--context", action="append", help="of the kubeconfig; repeatable")
    asked = parser.parse_args(words)
    spell_anything()
    end = sweep(asked.dry_run, asked.run, asked.without_lease, asked.context, return_state=True)
    print(end.message)
    return 0 if end.is_completed() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
