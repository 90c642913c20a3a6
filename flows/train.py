"""The line, for one profile: load, plan, preflight, rendezvous, submit, wait, collect, teardown, report."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Failed

from torchyard.cli.main import add_overrides, read_overrides
from torchyard.common.escaping import plain, spell_anything
from torchyard.common.log import log
from torchyard.common.secrets import mask, warn_overrides
from torchyard.loading.profile import load_profile
from torchyard.model.errors import OwnedError, TorchyardError
from torchyard.run.carry import carry
from torchyard.run.runner import Line
from torchyard.steps.descriptors import raise_limit


@flow(name="train")
def train(profile: str, overrides: dict[str, Any] | None = None) -> State[Any]:
    """Train what a profile says, from preflight to the report.

    Args:
        profile: A name from `torchyard profiles`, or the path of a YAML file.
        overrides: Keys of the profile to change for this run, such as {"nodes": 4, "deadlines.run": "2h"}.
    """
    raise_limit()
    spell_anything()
    if said := warn_overrides(overrides or {}):
        log().warning("%s", said)
    try:
        chosen = load_profile(profile, overrides)
        return carry(Line(chosen, str(flow_run.id)))
    except OwnedError as error:
        return leave(error)
    except TorchyardError as error:
        log().error("%s", error)
        return Failed(message=mask(plain(str(error))))


def leave(error: OwnedError) -> State[Any]:
    """End this process without touching the run: its owner will say how it ended."""
    log().warning("%s", error)
    logging.shutdown()
    os._exit(0)


def main(words: Sequence[str]) -> int:
    """`python flows/train.py PROFILE [--set KEY=VALUE ...]`: the same flow, without a deployment."""
    parser = argparse.ArgumentParser(prog="flows/train.py", description=main.__doc__)
    parser.add_argument("profile")
    add_overrides(parser)
    asked = parser.parse_args(words)
    spell_anything()
    end = train(asked.profile, read_overrides(asked.set), return_state=True)
    if not end.is_completed():
        print(f"{end.name}: {end.message}", file=sys.stderr)
    return 0 if end.is_completed() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
