"""Processes on this machine whose run folder was removed: found by their runs folder, and ended."""

import os
import signal
from pathlib import Path

from tests.processes.removed_folders import LABEL, RUN, Start
from tests.support.waiting import wait_until
from torchyard.host.processes import find_labelled
from torchyard.machines.orphan_processes import end_orphan_process, find_orphan_processes


def test_orphan_is_found_and_ended(start: Start, tmp_path: Path) -> None:
    """Processes of a run whose folder is gone are found by their runs folder, and ended."""
    state = start()
    (orphan,) = find_orphan_processes(tmp_path / "runs")
    assert (orphan.run, orphan.label, state["agent"] in orphan.pids, orphan.is_supervised) == (RUN, LABEL, True, True)
    assert end_orphan_process(orphan) == ()
    assert (find_orphan_processes(tmp_path / "runs"), find_labelled(LABEL)) == ([], [])


def test_orphan_without_a_supervisor_is_marked(start: Start, tmp_path: Path) -> None:
    """An orphan without a supervisor, which no lease will end, is marked."""
    os.kill(start()["supervisor"], signal.SIGKILL)
    wait_until(lambda: [orphan.is_supervised for orphan in find_orphan_processes(tmp_path / "runs")] == [False])


def test_run_with_a_plan_has_no_orphans(start: Start, node: Path, tmp_path: Path) -> None:
    """Processes of an existing run folder, or of another runs folder, are not orphans."""
    start(remove=False)
    (node.parent / "plan.json").touch()
    assert (find_orphan_processes(tmp_path / "runs"), find_orphan_processes(tmp_path / "other")) == ([], [])
