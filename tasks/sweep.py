"""What others do about a run whose launcher is gone: the sweep flow, and the guard of one run."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Scheduled

from tasks.errors import ClusterError, OwnedError
from tasks.folder import RunFolder
from tasks.plan import ManifestPlan, Plan
from tasks.signals import cancelling
from tasks.step import log
from tasks.teardown import release, teardown

# A living worker tells within a second or two that its flow died; only then is it the guard's turn.
WORKERS_TURN = 5.0
COMEBACK = 20.0  # seconds between a crash and the process that comes back, on a machine that is not too busy
LOOKS = 6


def is_open(folder: RunFolder) -> bool:
    """Whether a run may still have something running: its journal tells no end, or the end of giving up."""
    events = folder.events()
    return bool(events) and (events[-1]["event"] != "end" or events[-1]["end"] == "gave-up")


def sweep_run(folder: RunFolder, by: str, why: str) -> tuple[str, ...] | None:
    """Tear down everything of one run, journal its end and tell Prefect; None where a living process carries it.

    A run that was being ended when its launcher died gets the end that it was coming to.
    """
    try:
        with folder.owned():
            if not is_open(folder):
                return ()
            left = remove(folder.plans())
            ending = folder.last("ending")
            end, sentence = ending.get("end", "swept"), ending.get("sentence", why)
            folder.note("end", end=end, by=by, sentence=sentence, left=left)
    except OwnedError:
        return None
    except ClusterError as error:
        return (str(error),)
    tell(folder.last("start").get("run", ""), ended(end, sentence))
    return left


def remove(plans: Sequence[Plan]) -> tuple[str, ...]:
    """Everything of a run's attempts, and their Lease; what is left. OwnedError where another machine carries it."""
    for plan in plans[-1:]:
        if isinstance(plan, ManifestPlan):
            from tasks import lease

            lease.refuse_carried(plan)
    left = tuple(thing for plan in plans for thing in teardown.fn(plan, end_run=False))
    for plan in plans[-1:] if not left else ():
        release(plan)
    return left


def ended(end: str, sentence: str) -> State[Any]:
    """The Prefect state of an end.

    A meant end is never *named* Crashed: the automation that brings lost runs back listens for that name.
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
    """Set the state of the flow run, which would stay Running for ever: nobody lives who would end it.

    With `count`, only if nobody has begun the run again since.
    """
    try:
        with get_client(sync_client=True, httpx_settings={"timeout": 5}) as client:
            flow_run: FlowRun = client.read_flow_run(UUID(run_id))
            current = flow_run.state
            if current and not current.is_final() and count in (None, flow_run.run_count):
                client.set_flow_run_state(flow_run.id, state, force=True)
    except Exception as error:
        log().debug("flow run %s was not told: %s", run_id, error)


def say_lost(folder: RunFolder) -> None:
    """Tell Prefect that the launcher died, so that the run comes back now and not when its heartbeat is missed.

    A run that was being cancelled does not come back: it is ended here.
    """
    time.sleep(WORKERS_TURN)
    start = folder.last("start")
    if not is_open(folder):
        return
    if cancelling(start["run"]):
        folder.note("ending", end="cancelled", sentence="cancelled through Prefect")
        sweep_run(folder, "guard", "")
    else:
        lost: State[Any] = State(type=StateType.CRASHED, name="Crashed", message="the process of this run died")
        tell(start["run"], lost, start.get("count"))
        look_again(folder, start)


def look_again(folder: RunFolder, start: dict[str, Any]) -> None:
    """See to it that the run comes back: a busy Prefect server loses events, and with one of them the automation."""
    for _ in range(LOOKS):
        time.sleep(COMEBACK)
        if folder.last("start") != start or not is_open(folder):
            return
        revive(start["run"])


def revive(run_id: str) -> bool:
    """Schedule a run of a deployment that is still Crashed by that very name, as the automation would."""
    try:
        with get_client(sync_client=True, httpx_settings={"timeout": 5}) as client:
            flow_run: FlowRun = client.read_flow_run(UUID(run_id))
            if flow_run.deployment_id is None or flow_run.state_name != "Crashed":
                return False
            client.set_flow_run_state(flow_run.id, Scheduled(message="its process was lost: it comes back"), force=True)
    except Exception as error:
        log().debug("flow run %s was not scheduled: %s", run_id, error)
        return False
    return True


if __name__ == "__main__":
    place = RunFolder(Path(sys.argv[2]))
    if sys.argv[1] == "keep":
        say_lost(place)
    else:
        sweep_run(place, "guard", "the launcher died, and the profile says stop (on_launcher_lost)")
