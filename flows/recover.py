"""Resumes runs that have lost their launcher: an automation starts this flow if nothing else has resumed them."""

import sys
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from torchyard.tasks.recovery import recover_lost_runs


@flow(name="recover")
def recover() -> State[Any]:
    """Check the current state of every run that may have lost its launcher, and schedule those that have lost it."""
    result = recover_lost_runs()
    if result.faults:
        return Failed(message=f"{result}; not checked: {', '.join(result.faults)}")
    return Completed(message=str(result))


if __name__ == "__main__":
    sys.exit(0 if recover(return_state=True).is_completed() else 1)
