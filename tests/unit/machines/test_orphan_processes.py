"""Processes on this machine whose run folder was removed: found by their runs folder, and ended."""

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.processes.removed_folders import LABEL, RUN, Start
from tests.support.waiting import wait_until
from torchyard.host.processes import find_labelled
from torchyard.machines.orphan_processes import end_orphan_process, find_orphan_processes
from torchyard.model.errors import FolderError


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


def test_folder_that_cannot_be_read_was_not_removed(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is ended, or reported, while the folder of the runs is stale."""
    start()
    (orphan,) = find_orphan_processes(tmp_path / "runs")
    lstat = os.lstat

    def fail(path: Any, *args: Any, **options: Any) -> os.stat_result:
        if str(path) == orphan.plan_path:
            raise OSError(errno.ESTALE, "Stale file handle")
        return lstat(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", fail)
        assert find_orphan_processes(tmp_path / "runs") == []
        with pytest.raises(FolderError, match="its processes were not ended"):
            end_orphan_process(orphan)
    assert find_labelled(LABEL)


def test_folder_that_is_back_keeps_its_processes(start: Start, tmp_path: Path) -> None:
    """A run whose folder was moved away and back between the search and the signal is not ended."""
    start()
    (orphan,) = find_orphan_processes(tmp_path / "runs")
    Path(orphan.plan_path).parent.mkdir(parents=True, exist_ok=True)
    Path(orphan.plan_path).touch()
    with pytest.raises(FolderError, match="it exists again"):
        end_orphan_process(orphan)
    assert find_labelled(LABEL)


def test_run_with_a_plan_has_no_orphans(start: Start, node: Path, tmp_path: Path) -> None:
    """Processes of an existing run folder, or of another runs folder, are not orphans."""
    start(remove=False)
    (node.parent / "plan.json").touch()
    assert (find_orphan_processes(tmp_path / "runs"), find_orphan_processes(tmp_path / "other")) == ([], [])
