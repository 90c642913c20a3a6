"""Brings back the runs that have lost their launcher: an automation calls it where nobody else has done so."""

import sys
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from tasks.recovery import recover_lost_runs


@flow(name="comeback")
def comeback() -> State[Any]:
    """Look at every run that may have lost its launcher, as it is now, and schedule those that have."""
    looked = recover_lost_runs()
    if looked.faults:
        return Failed(message=f"{looked}; not looked at: {', '.join(looked.faults)}")
    return Completed(message=str(looked))


if __name__ == "__main__":
    sys.exit(0 if comeback(return_state=True).is_completed() else 1)
