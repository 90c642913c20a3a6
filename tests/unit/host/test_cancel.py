"""Cancelling a supervised process: SIGTERM, SIGKILL after the grace, and what is reported as left over."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.processes import containers
from tests.processes.containers import Container, run_container
from tests.processes.supervised import (
    build_spec,
    call_supervisor,
    read_log_texts,
    send_line,
    start_script,
    start_watch,
)
from tests.support.waiting import wait_until
from torchyard.common.project_root import ROOT
from torchyard.host.processes import find_labelled, identify_process
from torchyard.host.state import take_lock, view_state, write_state

SKIP_REASON = containers.find_obstacle()
needs_containers = pytest.mark.skipif(bool(SKIP_REASON), reason=SKIP_REASON)


def test_cancel_sends_sigterm_first(folder: Path) -> None:
    """A process that ends on SIGTERM is not killed, and its last lines are in the log."""
    start_script(folder, "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.05; done")
    while not (folder / "log").exists() or "ready" not in read_log_texts(folder):
        time.sleep(0.01)
    assert call_supervisor("cancel", folder, grace=10)["exit"] == 5
    assert read_log_texts(folder)[-1] == "bye"


def test_cancel_kills_after_the_grace(folder: Path) -> None:
    """A process that ignores SIGTERM is killed, and nothing is left."""
    start_script(folder, "trap '' TERM; while :; do sleep 0.05; done")
    result = call_supervisor("cancel", folder, grace=0.2)
    assert (result["exit"], result["left"]) == (-9, [])


def test_second_cancel_sends_no_second_signal(folder: Path) -> None:
    """A process that saves its work on SIGTERM gets one, and its grace counts from that one, whoever asks again."""
    counting = "n=0; trap 'n=$((n+1)); echo asked $n' TERM; echo ready; while [ ! -e $FLAG ]; do sleep 0.05; done"
    start_script(folder, f"FLAG={folder}/saved; {counting}; echo saved; exit 3")
    wait_until(lambda: (folder / "log").exists() and "ready" in read_log_texts(folder))
    with ThreadPoolExecutor() as pool:
        first = pool.submit(call_supervisor, "cancel", folder, grace=60)
        wait_until(lambda: "asked 1" in read_log_texts(folder))
        second = pool.submit(call_supervisor, "cancel", folder, grace=60)
        time.sleep(0.5)  # in which a second signal would arrive
        (folder / "saved").touch()
        assert (first.result()["exit"], second.result()["exit"]) == (3, 3)
    assert read_log_texts(folder)[1:] == ["asked 1", "saved"]


def test_cancel_with_a_shorter_grace_kills_at_once(folder: Path) -> None:
    """Who does not want to wait any longer cancels again, with no grace."""
    start_script(folder, "trap '' TERM; while :; do sleep 0.05; done")
    with ThreadPoolExecutor() as pool:
        first = pool.submit(call_supervisor, "cancel", folder, grace=600)
        wait_until((folder / "stop").exists)
        assert call_supervisor("cancel", folder, grace=0)["exit"] == -9
        assert first.result()["exit"] == -9


def send_heartbeat(watch: "subprocess.Popen[bytes]", folder: Path) -> str:
    """Send a heartbeat through a watch; return the owner that was recorded before."""
    send_line(watch, {"owner": "here:/runs/a"})
    return (folder.parent / "owner").read_text()


def test_job_of_another_living_launcher_gets_no_signal(tmp_path: Path) -> None:
    """While the owner of a run sends heartbeats, a launcher that is not its owner cannot cancel its process."""
    folder = tmp_path / "sample" / "attempt-1" / "node-0"
    state = start_script(folder, "sleep 60")
    with start_watch(folder) as watch, ThreadPoolExecutor() as pool:
        wait_until(lambda: "here:/runs/a" in send_heartbeat(watch, folder))
        refused = pool.submit(call_supervisor, "cancel", folder, grace=0, owner="there:/runs/a")
        while not refused.done():
            send_heartbeat(watch, folder)
            time.sleep(0.2)
        assert refused.result() == {"other_owner": "here:/runs/a"}
        assert identify_process(state["agent"]).is_alive
        watch.kill()
    assert call_supervisor("cancel", folder, grace=0, owner="here:/runs/a")["left"] == []


def test_cancel_of_nothing_is_a_success(folder: Path) -> None:
    """Cancelling a process that was never started succeeds and leaves nothing behind."""
    assert call_supervisor("cancel", folder, grace=1) == {"phase": "absent", "left": []}


def test_killed_supervisor_is_detected(folder: Path) -> None:
    """The status shows that a supervisor was killed, and cancel still removes its process."""
    os.kill(start_script(folder, "sleep 60")["supervisor"], signal.SIGKILL)
    assert call_supervisor("status", folder)["phase"] == "unsupervised"
    assert call_supervisor("cancel", folder, grace=1)["left"] == []
    assert find_labelled(str(folder)) == []


def test_rendezvous_file_is_removed_with_its_process(folder: Path, tmp_path: Path) -> None:
    """The rendezvous file is removed with the processes: those of another attempt would wait forever on it."""
    start_script(folder, f"touch {tmp_path}/meet; echo ready; sleep 60", meeting=str(tmp_path / "meet"))
    while not (folder / "log").exists() or "ready" not in read_log_texts(folder):
        time.sleep(0.01)
    assert call_supervisor("cancel", folder, grace=1)["left"] == []
    assert not (tmp_path / "meet").exists()


# --- a program whose start hangs


@pytest.fixture
def hanging_start(tmp_path: Path) -> Iterator[Path]:
    """The folder of a process whose program cannot be executed, because a name server does not respond."""
    folder = tmp_path / "kept"
    spec = build_spec(folder, "sleep 60") | {"toward": "gpu2"}
    requests = json.dumps({"node-0": {"folder": str(folder), "spec": spec}})
    with subprocess.Popen(HANGING_START, stdin=subprocess.PIPE, text=True, cwd=tmp_path) as submit:
        assert submit.stdin
        submit.stdin.write(requests)
        submit.stdin.close()
        wait_until((tmp_path / "hanging").exists)
        submit.kill()  # as a launcher does that has waited for long
    yield folder
    (tmp_path / "go").touch()
    call_supervisor("cancel", folder, grace=0)


# The supervisor, whose program waits for a name server until there is a file `go`.
HANGING_START = [
    sys.executable,
    "-c",
    f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from torchyard.host import supervisor

def wait_for_name_server(destination):
    open("hanging", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.01)
    return {{}}

supervisor.choose_interface_env = wait_for_name_server
supervisor.main("submit")
""",
]


def test_process_that_is_starting_is_ended(hanging_start: Path, tmp_path: Path) -> None:
    """A program whose start hangs on a name server is not started after a cancel, and nothing of it is left."""
    state = view_state(str(hanging_start))
    assert state["phase"] == "starting"
    assert call_supervisor("cancel", hanging_start, grace=1)["left"] == []
    assert not identify_process(state["supervisor"]).is_alive
    assert view_state(str(hanging_start))["phase"] == "unsupervised"  # nobody holds the lock: nothing can start


def test_supervisor_without_a_state_is_left_over(tmp_path: Path) -> None:
    """While a process holds the lock and has written no state, its program may start yet: it is left over."""
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "spec.json").write_text(json.dumps(build_spec(folder, "")))
    lock = take_lock(str(folder))
    assert lock is not None
    assert call_supervisor("cancel", folder, grace=0)["left"] == ["the supervisor of node-0, which is starting"]
    os.close(lock)
    assert call_supervisor("cancel", folder, grace=0)["left"] == []


# --- a program that hides its label, as setproctitle does


def start_hidden(folder: Path, script: str) -> Any:
    """Start a process that has no environment; return its state once it runs."""
    state = start_script(folder, f"exec env -i bash -c {script!r}")
    wait_until(lambda: not find_labelled(str(folder)))
    return state


def test_process_without_its_environment_gets_sigterm(folder: Path, tmp_path: Path) -> None:
    """A program that has overwritten its environment is ended like any other, and its end is recorded."""
    start_hidden(folder, f'trap "exit 5" TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done')
    wait_until((tmp_path / "ready").exists)
    result = call_supervisor("cancel", folder, grace=10)
    assert (result["phase"], result["exit"], result["left"]) == ("exited", 5, [])


def test_process_without_environment_and_supervisor_is_ended(folder: Path) -> None:
    """Its number and its start time show the process of a killed supervisor that has overwritten its environment."""
    state = start_hidden(folder, "sleep 60")
    agent = identify_process(state["agent"])
    os.kill(state["supervisor"], signal.SIGKILL)
    wait_until(lambda: view_state(str(folder))["phase"] == "unsupervised")
    assert (call_supervisor("cancel", folder, grace=5)["left"], agent.is_alive) == ([], False)


def test_descendant_without_environment_is_found_before_the_supervisor_dies(folder: Path, tmp_path: Path) -> None:
    """A hung supervisor is killed only after its descendants, also those that show no label."""
    state = start_script(folder, f"env -i setsid sleep 60 & echo $! > {tmp_path}/child; sleep 60")
    wait_until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().strip())
    child = identify_process(int((tmp_path / "child").read_text()))
    os.kill(state["supervisor"], signal.SIGSTOP)
    result = call_supervisor("cancel", folder, grace=0.2)
    assert (result["left"], child.is_alive) == ([], False)


def test_reused_process_number_gets_no_signal(folder: Path) -> None:
    """A process that has the number of an agent that has ended is not touched."""
    state = start_script(folder, "sleep 60")
    os.kill(state["supervisor"], signal.SIGKILL)
    os.kill(state["agent"], signal.SIGKILL)
    with subprocess.Popen(["sleep", "60"]) as stranger:
        write_state(str(folder), agent=stranger.pid, supervisor=stranger.pid)
        assert call_supervisor("cancel", folder, grace=0.2)["left"] == []
        assert stranger.poll() is None
        stranger.kill()


# --- processes of another user


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start processes as two users")
def test_leftover_of_another_user_does_not_change_the_exit_code() -> None:
    """A child that cannot be signalled (sudo) is reported as left over, and the exit code is the program's own."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        sudo = Path(name, "sudo")
        shutil.copy(str(shutil.which("setpriv")), sudo)
        sudo.chmod(0o4755)
        folder = Path(name, "kept")
        script = f"setsid {sudo} --reuid=0 sleep 60 & echo $! > {name}/child; sleep 0.5; exit 0"
        call_as_nobody("submit", folder, spec=build_spec(folder, script))
        state = wait_until(lambda: find_end(folder))
        child = int(Path(name, "child").read_text())
        try:
            result = call_as_nobody("cancel", folder, grace=0.1)
            assert (state["exit"], result["left"]) == (0, [f"process {child} of another user (root)"])
        finally:
            os.kill(child, signal.SIGKILL)
        wait_until(lambda: call_as_nobody("cancel", folder, grace=0.1)["left"] == [])


def test_unended_process_of_another_container_is_left_over(folder: Path) -> None:
    """A process that its supervisor could not end is looked at only where it runs."""
    start_script(folder, "exit 0")
    wait_until(lambda: find_end(folder))
    write_state(str(folder), unended=[[1, 1]], pid_namespace="pid:[4026530000]", hostname="c1")
    assert call_supervisor("cancel", folder, grace=0.1)["left"] == ["1 processes of node-0 on c1"]


def find_end(folder: Path) -> Any:
    """The state of a process that has ended; None while it runs."""
    state = view_state(str(folder))
    return state if state["phase"] == "exited" else None


def call_as_nobody(verb: str, folder: Path, **fields: Any) -> Any:
    """Call the supervisor as a user without rights."""
    prefix = [str(shutil.which("setpriv")), "--reuid=65534", "--regid=65534", "--clear-groups"]
    return call_supervisor(verb, folder, prefix, **fields)


# --- containers that share a folder


@needs_containers
def test_process_of_another_container_is_not_touched(folder: Path) -> None:
    """The process numbers of another container are strangers here: none is killed, and its process is left over."""
    with run_container("c1") as first, run_container("c2") as second:
        state = start_in(first, folder, "sleep 60")
        fill_process_numbers(second, state["agent"])
        pids = [str(state[role]) for role in ("supervisor", "agent")]
        assert second.is_running(*pids)
        result = call_supervisor("cancel", folder, second.prefix, grace=0.1)
        location = "in another PID namespace (a container) of this machine, whose host name is c1"
        assert result["left"] == [f"the process of node-0 runs {location}: end it there"]
        assert second.is_running(*pids)
        assert call_supervisor("status", folder, first.prefix)["phase"] == "running"
        assert call_supervisor("cancel", folder, first.prefix, grace=5)["left"] == []


@needs_containers
def test_container_with_the_same_host_name_is_another_one(folder: Path) -> None:
    """The PID namespace distinguishes containers, not their host name, also if the supervisor there was killed."""
    with run_container("worker") as first, run_container("worker") as second:
        state = start_in(first, folder, "sleep 60")
        first.run("kill", "-9", str(state["supervisor"]))
        wait_until(lambda: call_supervisor("status", folder, second.prefix)["phase"] == "unsupervised")
        (leftover,) = call_supervisor("cancel", folder, second.prefix, grace=0.1)["left"]
        assert "in another PID namespace (a container) of this machine" in leftover
        assert call_supervisor("cancel", folder, first.prefix, grace=5)["left"] == []


def fill_process_numbers(container: Container, last_pid: int) -> None:
    """Start processes in a new container until one has this number."""
    script = "sleep 60 & " * last_pid + "echo started; wait"
    process = container.start("sh", "-c", script, stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"started\n"


def start_in(container: Container, folder: Path, script: str) -> Any:
    return call_supervisor("submit", folder, container.prefix, spec=build_spec(folder, script))
