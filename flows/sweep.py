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

from tasks.errors import TorchyardError
from tasks.folder import all_runs
from tasks.step import log
from tasks.sweep import alive, ended, is_open, revive, sweep_run, tell


class Due(NamedTuple):
    """A run that nobody looks after: where it has something, why it goes, and how to remove it."""

    run: str
    where: str
    why: str
    remove: Callable[[], Sequence[str] | None]


@flow(name="sweep")
def sweep(dry_run: bool = False, now: bool = False, contexts: list[str] | None = None) -> State[Any]:
    """Take away every job whose lease has ended and whose launcher is dead, on this machine's hosts and in clusters.

    A run that is Crashed, and whose lease lasts, is scheduled again: the automation may have missed it.

    Args:
        dry_run: Only say what would be removed.
        now: Do not wait for the end of leases; living launchers are left alone all the same.
        contexts: The kubeconfig's contexts to look through, in all namespaces; else the current one, if there is one.
    """
    faults: list[str] = []
    here = list(folders(now))
    if dry_run:
        due = [*here, *in_clusters(contexts, now, faults)]
        show(due, ["" for _ in due])
        return close(f"would remove {len(due)}: " + ", ".join(each.run for each in due), faults)
    back = sum(map(revive, lost(contexts)))
    left = [remove(each) for each in here]
    # What is here is removed first: the rest is what other machines have left.
    there = list(in_clusters(contexts, now, faults))
    left += [remove(each) for each in there]
    show([*here, *there], ["; ".join(each or ()) for each in left])
    faults += [thing for things in left for thing in things or ()]
    return close(f"looked after {len(left)} runs" + (f", brought {back} back" if back else ""), faults)


def close(said: str, faults: list[str]) -> State[Any]:
    return Failed(message=f"{said}; left behind: {', '.join(faults)}") if faults else Completed(message=said)


def folders(now: bool) -> Iterator[Due]:
    """The runs that this machine has carried."""
    for folder in all_runs():
        if is_open(folder) and (now or folder.lease_left() < 0):
            why = "no launcher carries it" + (", and its lease has ended" if folder.lease_left() < 0 else "")
            yield Due(folder.name, "here", why, partial(sweep_run, folder, "sweep", why))


def lost(contexts: list[str] | None) -> set[str]:
    """The flow runs whose lease lasts, and that may have no launcher."""
    from tasks import orphans

    found = {str(each.last("start").get("run")) for each in all_runs() if is_open(each) and each.lease_left() >= 0}
    for context in clusters(contexts, []):
        with contextlib.suppress(TorchyardError):  # told where it is looked through
            found.update(orphans.silent(context))
    return found


def clusters(contexts: list[str] | None, faults: list[str]) -> Iterator[str | None]:
    """The contexts that lead to a cluster; one that is named, and does not, is a fault."""
    from tasks import orphans

    wanted: Sequence[str | None] = contexts or (None,)
    for context in wanted:
        try:
            if orphans.has_cluster(context):
                yield context
        except TorchyardError as error:
            faults.append(str(error))


def in_clusters(contexts: list[str] | None, now: bool, faults: list[str]) -> Iterator[Due]:
    """The runs that any machine has left in a cluster."""
    from tasks import orphans

    for context in clusters(contexts, faults):
        try:
            for each in orphans.orphans(context, now, alive):
                yield Due(each.run, f"namespace {each.server.namespace}", each.why, partial(clear, each))
        except TorchyardError as error:
            faults.append(str(error))


def clear(orphan: Any) -> list[str]:
    """Remove a run from its cluster, and tell Prefect, where it still waits for a worker."""
    from tasks import orphans

    left = orphans.remove(orphan)
    if orphan.flow_run:
        tell(orphan.flow_run, ended("swept", f"no launcher carried it, and {orphan.why}"))
    return left


def remove(due: Due) -> Sequence[str] | None:
    """What is left of one run; a run that a living process carries is not touched."""
    try:
        left = due.remove()
    except TorchyardError as error:
        return [str(error)]
    if left is not None:
        log().warning("%s, %s: %s; removed", due.run, due.where, due.why)
    return left


def show(due: Sequence[Due], left: Sequence[str]) -> None:
    """The table in Prefect; a server that is away costs the table alone."""
    rows = [
        {"run": each.run, "where": each.where, "why": each.why, "left": rest}
        for each, rest in zip(due, left, strict=True)
    ]
    try:
        if rows:
            create_table_artifact(rows, key="sweep", description="Runs that nobody looked after")
    except Exception as error:
        log().warning("the table is not in Prefect: %s", error)


def main(words: Sequence[str]) -> int:
    """`python flows/sweep.py [--dry-run] [--now] [--context NAME ...]`: the same flow, without a deployment."""
    parser = argparse.ArgumentParser(prog="flows/sweep.py", description=main.__doc__)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--now", action="store_true")
    parser.add_argument("--context", action="append")
    asked = parser.parse_args(words)
    end = sweep(asked.dry_run, asked.now, asked.context, return_state=True)
    print(end.message)
    return 0 if end.is_completed() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
