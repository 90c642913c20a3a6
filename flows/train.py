"""The flow `train`: one profile, from preflight to the report (torchyard/run/runner.py: `run_pipeline`)."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, cast

from prefect import flow

from tasks.train import train_flow_run
from torchyard.common.escaping import escape_unencodable_output
from torchyard.loading.overrides import OVERRIDES_HELP, read_overrides
from torchyard.model.run import RunResult


# The result is stored only for callers: no run depends on it (docs/reuse.md).
@flow(name="train", persist_result=True)
def train(
    profile: str, overrides: dict[str, Any] | None = None, resume: str | None = None, dry_run: bool = False
) -> RunResult:
    """Run the training that a profile describes, from preflight to the report.

    Args:
        profile: A name from `torchyard profiles`, or the path of a YAML file.
        overrides: Keys of the profile to change for this run, such as {"nodes": 4, "deadlines.run": "2h"}.
        resume: Continue from the last complete checkpoint of this run, or from this path.
        dry_run: Show the plan and run preflight; start nothing.
    """
    # Prefect takes the returned state as the flow run's state and gives its data to callers.
    return cast(RunResult, train_flow_run(profile, overrides, resume=resume, dry_run=dry_run))


def main(argv: Sequence[str]) -> int:
    """`python flows/train.py PROFILE [--set KEY=VALUE ...] [--resume RUN]`: the same flow, without a deployment."""
    parser = argparse.ArgumentParser(prog="flows/train.py", description=main.__doc__)
    parser.add_argument("profile")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=OVERRIDES_HELP)
    parser.add_argument("--resume", metavar="RUN", help="continue from the last complete checkpoint of this run")
    args = parser.parse_args(argv)
    escape_unencodable_output()
    state = train(args.profile, read_overrides(args.set), args.resume, return_state=True)
    if not state.is_completed():
        print(f"{state.name}: {state.message}", file=sys.stderr)
    return 0 if state.is_completed() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
