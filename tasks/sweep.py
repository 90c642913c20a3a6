"""Remove what runs left behind whose launcher is gone: for the sweep flow, and for the guard of one run."""

import sys
from pathlib import Path
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.objects import State, StateType

from tasks.errors import OwnedError
from tasks.folder import RunFolder
from tasks.step import log
from tasks.teardown import teardown


def is_open(folder: RunFolder) -> bool:
    """Whether a run may still have something running: its journal tells no end, or the end of giving up."""
    events = folder.events()
    return bool(events) and (events[-1]["event"] != "end" or events[-1]["end"] == "gave-up")


def sweep_run(folder: RunFolder, by: str, why: str) -> tuple[str, ...] | None:
    """Tear down everything of one run and journal its end; None where a living process carries it."""
    try:
        with folder.owned():
            if not is_open(folder):
                return ()
            left = tuple(thing for plan in folder.plans() for thing in teardown.fn(plan))
            folder.note("end", end="swept", by=by, sentence=why, left=left)
            return left
    except OwnedError:
        return None


def say_ended(folder: RunFolder, why: str) -> None:
    """Tell Prefect, whose run would stay Running for ever: nobody lives who would end it."""
    run_id = next((event["run"] for event in folder.events() if "run" in event), None)
    try:
        with get_client(sync_client=True) as client:
            flow_run = client.read_flow_run(UUID(run_id))
            if flow_run.state and not flow_run.state.is_final():
                state: State[None] = State(type=StateType.CRASHED, name="Swept", message=why)
                client.set_flow_run_state(flow_run.id, state, force=True)
    except Exception as error:  # noqa: BLE001 - another server's run, or none: the job is gone all the same
        log().debug("%s: its flow run was not told: %s", folder.name, error)


if __name__ == "__main__":
    sweep_run(RunFolder(Path(sys.argv[1])), "guard", "the launcher died; its guard finished the teardown")
