"""What others do about a run whose launcher is gone: the sweep flow, and the guard of one run."""

import sys
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.objects import FlowRun, State, StateType

from tasks.errors import OwnedError
from tasks.folder import RunFolder
from tasks.signals import cancelling
from tasks.step import log
from tasks.teardown import teardown

# A living worker tells within a second or two that its flow died; only then is it the guard's turn.
WORKERS_TURN = 5.0


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
            left = tuple(thing for plan in folder.plans() for thing in teardown.fn(plan))
            ending = folder.last("ending")
            end, sentence = ending.get("end", "swept"), ending.get("sentence", why)
            folder.note("end", end=end, by=by, sentence=sentence, left=left)
    except OwnedError:
        return None
    tell(folder, ended(end, sentence))
    return left


def ended(end: str, sentence: str) -> State[Any]:
    """The Prefect state of an end.

    A meant end is never *named* Crashed: the automation that brings lost runs back listens for that name.
    """
    kinds = {"succeeded": StateType.COMPLETED, "failed": StateType.FAILED, "cancelled": StateType.CANCELLED}
    name = {"succeeded": "Completed", "gave-up": "GaveUp"}.get(end, end.title())
    return State(type=kinds.get(end, StateType.CRASHED), name=name, message=sentence)


def tell(folder: RunFolder, state: State[Any], count: int | None = None) -> None:
    """Set the state of the flow run, which would stay Running for ever: nobody lives who would end it.

    With `count`, only if nobody has begun the run again since.
    """
    try:
        with get_client(sync_client=True, httpx_settings={"timeout": 5}) as client:
            flow_run: FlowRun = client.read_flow_run(UUID(folder.last("start")["run"]))
            current = flow_run.state
            if current and not current.is_final() and count in (None, flow_run.run_count):
                client.set_flow_run_state(flow_run.id, state, force=True)
    except Exception as error:
        log().debug("%s: its flow run was not told: %s", folder.name, error)


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
        tell(folder, lost, start.get("count"))


if __name__ == "__main__":
    place = RunFolder(Path(sys.argv[2]))
    if sys.argv[1] == "keep":
        say_lost(place)
    else:
        sweep_run(place, "guard", "the launcher died, and the profile says stop (on_launcher_lost)")
