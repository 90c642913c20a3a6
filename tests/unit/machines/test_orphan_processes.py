"""Processes on this machine whose run folder was removed: found by their runs folder, and ended."""

import os
import signal
from pathlib import Path

import pytest

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


def test_orphan_names_the_flow_run_that_started_it(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training in a flow has its own id, so its processes name the flow run: without its folder nothing else does."""
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0190c7f0-0000-7000-8000-0000a1b2c3d4")
    start()
    (orphan,) = find_orphan_processes(tmp_path / "runs")
    assert orphan.flow_run == "0190c7f0-0000-7000-8000-0000a1b2c3d4"


def test_orphan_that_hides_its_environment_is_found(start: Start, tmp_path: Path) -> None:
    """The lock that its supervisor holds shows the processes of a program that has overwritten its environment."""
    start(argv=["env", "-i", "sleep", "60"])
    (orphan,) = find_orphan_processes(tmp_path / "runs")
    assert (orphan.label, len(orphan.pids), orphan.is_supervised) == (LABEL, 1, True)
    assert (end_orphan_process(orphan), find_orphan_processes(tmp_path / "runs")) == ((), [])


def test_orphan_without_a_supervisor_is_marked(start: Start, tmp_path: Path) -> None:
    """An orphan without a supervisor, which no lease will end, is marked."""
    os.kill(start()["supervisor"], signal.SIGKILL)
    wait_until(lambda: [orphan.is_supervised for orphan in find_orphan_processes(tmp_path / "runs")] == [False])


def test_run_with_a_plan_has_no_orphans(start: Start, node: Path, tmp_path: Path) -> None:
    """Processes of an existing run folder, or of another runs folder, are not orphans."""
    start(remove=False)
    (node.parent / "plan.json").touch()
    assert (find_orphan_processes(tmp_path / "runs"), find_orphan_processes(tmp_path / "other")) == ([], [])
