"""Removes the leftovers of runs that have lost their launcher for longer than their lease."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from torchyard.common.escaping import escape_unencodable_output
from torchyard.tasks.sweep import sweep_lost_runs, sweep_machine


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
        without_lease: Also remove objects in a cluster that have a run's label and no Lease; else they are only listed.
        contexts: The kubeconfig's contexts to search, in all namespaces; by default the current one, if there is one.
    """
    return sweep_lost_runs(dry_run=dry_run, runs=runs, without_lease=without_lease, contexts=contexts)


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
    escape_unencodable_output()
    if args.here:
        state = sweep_machine()
    else:
        state = sweep(args.dry_run, args.run, args.without_lease, args.context, return_state=True)
    print(state.message)
    return 0 if state.is_completed() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
