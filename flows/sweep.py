"""Removes what runs left behind whose launcher is gone for longer than their lease."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from tasks.folder import RunFolder, all_runs
from tasks.step import log
from tasks.sweep import is_open, sweep_run


@flow(name="sweep")
def sweep(dry_run: bool = False, now: bool = False) -> State[Any]:
    """Take away every job whose lease has ended and whose launcher is dead.

    Args:
        dry_run: Only say what would be removed.
        now: Do not wait for the end of leases; living launchers are left alone all the same.
    """
    due = [folder for folder in all_runs() if is_open(folder) and (now or folder.lease_left() < 0)]
    if dry_run:
        return Completed(message=f"would remove {len(due)}: " + ", ".join(folder.name for folder in due))
    left = [thing for folder in due for thing in remove(folder)]
    if left:
        return Failed(message=f"left behind: {', '.join(left)}")
    return Completed(message=f"looked after {len(due)} runs")


def remove(folder: RunFolder) -> tuple[str, ...]:
    """What is left of one run; a run that a living process carries is not touched."""
    why = "no launcher carries it" + (", and its lease has ended" if folder.lease_left() < 0 else "")
    left = sweep_run(folder, "sweep", why)
    if left is not None:
        log().warning("%s: %s; removed", folder.name, why)
    return left or ()


def main(words: Sequence[str]) -> int:
    """`python flows/sweep.py [--dry-run] [--now]`: the same flow, without a deployment."""
    parser = argparse.ArgumentParser(prog="flows/sweep.py", description=main.__doc__)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--now", action="store_true")
    asked = parser.parse_args(words)
    end = sweep(asked.dry_run, asked.now, return_state=True)
    print(end.message)
    return 0 if end.is_completed() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
