"""What others do about a run whose launcher is gone: take away what it has left, and tell Prefect."""

import sys
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Scheduled

from tasks.teardown import release, teardown
from torchyard.common.log import log
from torchyard.model.errors import OwnedError, TorchyardError
from torchyard.model.plan import ManifestPlan, Plan
from torchyard.run.folder import RunFolder
from torchyard.run.resume import CRASHED, LOST, last, split


def is_open(folder: RunFolder) -> bool:
    """Whether a run may still have something running: its journal tells no end, or the end of giving up."""
    if events := folder.events():
        return events[-1]["event"] != "end" or events[-1].get("end") == "gave-up"
    return bool(folder.attempts())  # a journal of which nothing can be read


def sweep_run(folder: RunFolder, by: str, why: str) -> tuple[str, ...] | None:
    """Tear down everything of one run, journal its end and tell Prefect; None where a living process carries it.

    A run that was being ended when its launcher died gets the end that it was coming to. What cannot be read or removed
    is left, and is told as that.
    """
    try:
        with folder.owned():
            if not is_open(folder):
                return ()
            events = folder.events()
            left = remove(folder.plans())
            ending = last(split(events)[-1] if events else (), "ending")  # an earlier life's is over
            end, sentence = ending.get("end", "swept"), ending.get("sentence", why)
            folder.note("end", end=end, by=by, sentence=sentence, left=left)
    except OwnedError:
        return None
    except TorchyardError as error:
        return (str(error),)
    tell(last(events, "start").get("run", ""), ended(end, sentence))
    return left


def remove(plans: Sequence[Plan]) -> tuple[str, ...]:
    """Everything of a run's attempts, and their Lease; what is left. OwnedError where another machine carries it."""
    for plan in plans[-1:]:
        if isinstance(plan, ManifestPlan):
            from torchyard.cluster import lease

            lease.refuse_carried(plan)
    left = tuple(thing for plan in plans for thing in teardown.fn(plan, end_run=False))
    for plan in plans[-1:] if not left else ():
        release(plan)
    return left


def ended(end: str, sentence: str) -> State[Any]:
    """The Prefect state of an end.

    A meant end is never *named* Crashed: that is the name of a run that is lost and comes back.
    """
    kinds = {"succeeded": StateType.COMPLETED, "failed": StateType.FAILED, "cancelled": StateType.CANCELLED}
    name = {"succeeded": "Completed", "gave-up": "GaveUp"}.get(end, end.title())
    return State(type=kinds.get(end, StateType.CRASHED), name=name, message=sentence)


def alive(run_id: str) -> str:
    """Its state, where a run may be alive by Prefect's word; empty where it has ended, waits or is unknown.

    A Prefect server that does not answer may know that it is alive.
    """
    try:
        with get_client(sync_client=True, httpx_settings={"timeout": 5}) as client:
            state = client.read_flow_run(UUID(run_id)).state
    except (ObjectNotFound, ValueError):
        return ""
    except Exception as error:
        return f"Prefect cannot be asked: {error}"
    return "" if state is None or state.is_final() or state.is_scheduled() else state.name or "alive"


def tell(run_id: str, state: State[Any], count: int | None = None) -> None:
    """Set the state of the flow run, which would stay Running or Crashed for ever: nobody lives who would end it.

    With `count`, only if nobody has begun the run again since.
    """
    try:
        with get_client(sync_client=True, httpx_settings={"timeout": 5}) as client:
            flow_run: FlowRun = client.read_flow_run(UUID(run_id))
            now = flow_run.state
            over = now is None or (now.is_final() and now.name != CRASHED) or now.name == state.name
            if not over and count in (None, flow_run.run_count):
                client.set_flow_run_state(flow_run.id, state, force=True)
    except Exception as error:
        log().debug("flow run %s was not told: %s", run_id, error)


def revive(run_id: str) -> bool:
    """Schedule a run of a deployment that is still Crashed by that very name."""
    try:
        with get_client(sync_client=True, httpx_settings={"timeout": 5}) as client:
            flow_run: FlowRun = client.read_flow_run(UUID(run_id))
            if flow_run.deployment_id is None or flow_run.state_name != CRASHED:
                return False
            client.set_flow_run_state(flow_run.id, Scheduled(message=LOST), force=True)
    except Exception as error:
        log().debug("flow run %s was not scheduled: %s", run_id, error)
        return False
    return True


if __name__ == "__main__":  # what the guard of a run calls
    from torchyard.run.recovery import main

    sys.exit(main(sys.argv[1:]))
