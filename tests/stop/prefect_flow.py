"""Cells of runs that Prefect's worker starts, and that are cancelled in Prefect."""

import time
from pathlib import Path

from tests.chaos.world import World, wait_until
from tests.stop.cells import Cell, Result
from tests.stop.trial import StopTrial

_END_TIMEOUT_S = 400.0
_FINAL_STATES = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


class PrefectTrial(StopTrial):
    """A run on this machine, created and cancelled by Prefect's API."""

    def __init__(self, cell: Cell, folder: Path, world: World) -> None:
        super().__init__(cell, folder, {}, {})
        self._world = world

    def play(self) -> Result:
        try:
            return self._play()
        finally:
            self.close()

    def _play(self) -> Result:
        run_id = self._world.create_run(self.profile, self.env)
        self.await_steps()
        asked_at = time.monotonic()
        self._world.set_state(run_id, "CANCELLING")

        def has_ended() -> bool:
            return self._world.get(f"/flow_runs/{run_id}")["state"]["type"] in _FINAL_STATES

        wait_until("the end", has_ended, _END_TIMEOUT_S, 0.5)
        self.await_condition(self.run_folder.report, "the report")
        return self.judge(time.monotonic() - asked_at)
