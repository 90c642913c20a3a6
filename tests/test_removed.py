"""What becomes of kept processes whose folder somebody removes while they run: nobody forgets them."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.sweep import _find_stray_runs
from tests.test_keep import keep
from torchyard.host import processes
from torchyard.host.processes import find_labelled
from torchyard.launchers.baremetal import _SUPERVISOR_PATH
from torchyard.machines.processes import run_command
from torchyard.machines.strays import end_stray, find_strays
from torchyard.model.plan import Command

LABEL = "sample-a1b2c3d4/1/node-0"
LASTS = "trap 'exit 5' TERM; while [ ! -e go ]; do sleep 0.05; done; echo last; exit 3"
Start = Callable[..., Any]


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A block's folder where runs have theirs."""
    return tmp_path / "runs" / "sample-a1b2c3d4" / "attempt-1" / "node-0"


@pytest.fixture
def start(node: Path, tmp_path: Path) -> Iterator[Start]:
    """Start a process that lasts until it may end, and remove its run's folder; nothing outlives the test."""

    def begin(remove: bool = True, **more: Any) -> Any:
        argv = more.pop("argv", ["bash", "-c", LASTS])
        spec = {"name": "node-0", "argv": argv, "env": {}, "cwd": str(tmp_path), "label": LABEL, "ports": []}
        state = keep("submit", node, spec={**spec, **more})
        if remove:
            shutil.rmtree(node.parents[1])
        return state

    yield begin
    assert processes.end_processes(LABEL, 0) == []


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def lives(pid: int) -> bool:
    return bool(processes._read_proc_file(pid, "cmdline"))


def test_process_runs_on_without_its_folder(start: Start, node: Path) -> None:
    """A folder that was removed is no end of its process: the status says that it runs, and why so little is known."""
    start()
    said = keep("status", node)
    assert (said["phase"], said["detail"]) == ("running", "its folder was removed, and it runs on")


def test_end_is_told_without_the_folder(start: Start, node: Path, tmp_path: Path) -> None:
    """The exit code of a process is known though its folder was removed, and the log that went with it is lost."""
    start()
    (tmp_path / "go").touch()
    until(lambda: keep("status", node)["phase"] == "exited")
    state = keep("status", node)
    assert (state["exit"], state["lost"], state["error"]) == (3, 1, "No such file or directory")


def test_cancel_finds_a_process_by_its_label(start: Start, node: Path) -> None:
    """Cancel ends what has no folder any more, its keeper too, and proves it."""
    state = start()
    assert keep("cancel", node, "5") == {"phase": "absent", "left": []}
    assert not lives(state["agent"])
    assert not lives(state["keeper"])


def test_cancel_ends_what_has_neither_folder_nor_keeper(start: Start, node: Path) -> None:
    """Without its folder and its keeper a process is found by its label all the same."""
    state = start()
    os.kill(state["keeper"], signal.SIGKILL)
    assert keep("cancel", node, "5")["left"] == []
    assert find_labelled(LABEL) == []


def test_nothing_is_started_twice(start: Start, node: Path) -> None:
    """A submit where the folder was removed adopts what runs."""
    agent = start()["agent"]
    assert (start(remove=False)["created"], find_labelled(LABEL)[0]) == (False, agent)


def test_lease_holds_without_the_folder(start: Start) -> None:
    """A process whose folder was removed, and that nobody looks after, ends with its lease; so does its keeper."""
    state = start(lease=0.3, grace=0.3)
    until(lambda: not lives(state["agent"]) and not lives(state["keeper"]))


def test_removed_folder_is_looked_after(start: Start, node: Path) -> None:
    """Who looks after a process whose folder was removed keeps it alive."""
    state = start(lease=1.0)
    argv = [sys.executable, "-I", "-S", _SUPERVISOR_PATH, "status", str(node)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as onlooker:
        assert onlooker.stdin
        for _ in range(10):
            onlooker.stdin.write(b"here:/runs/a\n")
            time.sleep(0.2)
        assert lives(state["agent"])
        assert lives(state["keeper"])
        onlooker.stdin.close()


def test_keeper_that_breaks_ends_its_process(start: Start) -> None:
    """A fault of the keeper itself ends its process with it: nobody would look after that any more."""
    ignores = ["bash", "-c", "trap '' TERM; while :; do sleep 0.05; done"]
    state = start(remove=False, lease=0.2, grace="no number", argv=ignores)
    until(lambda: not lives(state["keeper"]))
    assert find_labelled(LABEL) == []


def test_host_without_our_files_proves_that_nothing_runs(start: Start) -> None:
    """Where no keeper's file is any more, the text that is sent ends a whole attempt's processes."""
    from torchyard.machines.staging import _inline_script  # what goes over ssh

    start()
    said = run_command(
        "localhost", Command(argv=_inline_script(sys.executable, "processes.py", "end", "sample-a1b2c3d4/1/", "5"))
    )
    assert (said, find_labelled(LABEL)) == ({"left": []}, [])


# --- found on this machine


def test_stray_is_found_and_ended(start: Start, tmp_path: Path) -> None:
    """A run's processes whose folder is gone are found with their folder of runs, and ended."""
    state = start()
    (found,) = find_strays(tmp_path / "runs")
    assert (found.run, found.label, state["agent"] in found.pids, found.kept) == ("sample-a1b2c3d4", LABEL, True, True)
    assert end_stray(found) == ()
    assert (find_strays(tmp_path / "runs"), find_labelled(LABEL)) == ([], [])


def test_stray_without_a_keeper_is_said_to_be_so(start: Start, tmp_path: Path) -> None:
    """Nobody ends with its lease what has no keeper: that is known."""
    os.kill(start()["keeper"], signal.SIGKILL)
    until(lambda: [each.kept for each in find_strays(tmp_path / "runs")] == [False])


def test_stray_of_the_version_before_is_found(start: Start, tmp_path: Path) -> None:
    """A process that does not carry its folder is found by its keeper's."""
    start(argv=["env", "-u", processes.FOLDER_VARIABLE, "sleep", "60"])
    until(lambda: len(find_strays(tmp_path / "runs")) == 1)


def test_run_with_a_plan_is_no_stray(start: Start, node: Path, tmp_path: Path) -> None:
    """What a run folder knows, and what another folder of runs has started, is left to those."""
    start(remove=False)
    (node.parent / "plan.json").touch()
    assert (find_strays(tmp_path / "runs"), find_strays(tmp_path / "other")) == ([], [])


@pytest.mark.parametrize("killed", [False, True])
def test_sweep_ends_what_nobody_else_ends(start: Start, caplog: pytest.LogCaptureFixture, killed: bool) -> None:
    """Of processes without a folder a sweep reports those whose keeper ends them, and names the rest to be removed."""
    state = start()
    if killed:
        os.kill(state["keeper"], signal.SIGKILL)
        until(lambda: not lives(state["keeper"]))
    due = list(_find_stray_runs(None))
    assert [each.run for each in due] == (["sample-a1b2c3d4"] if killed else [])
    assert ("its keeper ends it with its lease" in caplog.text) is not killed
    assert [each.remove() for each in due] == ([()] if killed else [])
    assert bool(find_labelled(LABEL)) is not killed
