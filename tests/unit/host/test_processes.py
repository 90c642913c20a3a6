"""The processes of a job, found and ended by their label, after their folder was removed."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes.removed_folders import LABEL, RUN, Start, is_running
from tests.processes.supervised import call_supervisor, send_line, start_script, start_watch
from tests.support.waiting import wait_until
from torchyard.host import processes
from torchyard.host.processes import JobProcesses, ProcessId, end_processes, find_labelled, identify_process
from torchyard.machines.host_command import script_command
from torchyard.machines.processes import run_command


def test_process_keeps_running_without_its_folder(start: Start, node: Path) -> None:
    """A process outlives its folder: the status reports that it is running, and why it has no other values."""
    start()
    state = call_supervisor("status", node)
    assert (state["phase"], state["detail"]) == ("running", "its folder was removed; it keeps running")


def test_end_is_reported_without_the_folder(start: Start, node: Path, tmp_path: Path) -> None:
    """The exit code of a process whose folder was removed is known, and its log counts as lost."""
    start()
    (tmp_path / "go").touch()
    wait_until(lambda: call_supervisor("status", node)["phase"] == "exited")
    state = call_supervisor("status", node)
    assert (state["exit"], state["lost"], state["error"]) == (3, 1, "No such file or directory")


def test_cancel_finds_a_process_by_its_label(start: Start, node: Path) -> None:
    """Cancel ends a process without a folder, and its supervisor."""
    state = start()
    assert call_supervisor("cancel", node, grace=5) == {"phase": "absent", "left": []}
    assert not is_running(state["agent"])
    assert not is_running(state["supervisor"])


def test_cancel_ends_a_process_without_folder_and_supervisor(start: Start, node: Path) -> None:
    """A process without folder and supervisor is still found by its label."""
    state = start()
    os.kill(state["supervisor"], signal.SIGKILL)
    assert call_supervisor("cancel", node, grace=5)["left"] == []
    assert find_labelled(LABEL) == []


def test_nothing_is_started_twice(start: Start, node: Path) -> None:
    """A submit after the folder was removed adopts the running process."""
    agent = start()["agent"]
    assert (start(remove=False)["created"], find_labelled(LABEL)[0]) == (False, agent)


def test_lease_expires_without_the_folder(start: Start) -> None:
    """Without a renewal, a process whose folder was removed ends with its lease, and its supervisor exits."""
    state = start(lease=0.3, grace=0.3)
    wait_until(lambda: not is_running(state["agent"]) and not is_running(state["supervisor"]))


def test_lease_is_renewed_without_the_folder(start: Start, node: Path) -> None:
    """Renewals keep a process alive even if its folder was removed."""
    state = start(lease=2.0)
    with start_watch(node) as watch:
        for _ in range(12):
            send_line(watch, {"owner": "here:/runs/a"})
            time.sleep(0.2)
        assert is_running(state["agent"])
        assert is_running(state["supervisor"])
        watch.kill()


def test_failing_supervisor_ends_its_process(start: Start) -> None:
    """If the supervisor itself fails, it ends its process, which would otherwise be left unsupervised."""
    argv = ["bash", "-c", "trap '' TERM; while :; do sleep 0.05; done"]
    state = start(remove=False, lease=0.2, grace="no number", argv=argv)
    wait_until(lambda: not is_running(state["supervisor"]))
    assert find_labelled(LABEL) == []


def test_script_ends_processes_on_a_host_without_our_files(start: Start) -> None:
    """On a host without our files, the script that ssh sends ends all processes of an attempt."""
    start()
    script_argv = ("end", f".torchyard/{RUN}-1", "here:/runs/a", f"{RUN}/1/", "5")
    command = script_command("far", sys.executable, "staging.py", *script_argv)  # what goes over ssh
    result = run_command("localhost", command)
    assert (result, find_labelled(LABEL)) == ({"left": []}, [])


def test_process_that_starts_a_program_is_found(tmp_path: Path) -> None:
    """A process is found by its label also in the instant in which it becomes another program, without environment."""
    script = tmp_path / "again.sh"
    script.write_text(f"exec sh {script}\n", encoding="utf-8")
    variables = {**os.environ, "TORCHYARD_JOB": LABEL}
    with subprocess.Popen(["sh", str(script)], env=variables) as process:
        try:
            looks = [find_labelled(LABEL) for _ in range(300)]
            exit_code = process.poll()
        finally:
            process.kill()
    assert (exit_code, looks) == (None, [[process.pid]] * 300)


def test_folder_of_the_same_name_elsewhere_is_another_runs(tmp_path: Path) -> None:
    """Ending what a path stands for leaves a process alone whose folder has the same name, and whose label differs."""
    node = Path(RUN) / "attempt-9" / "node-0"
    state = call_supervisor(
        "submit",
        tmp_path / "first" / node,
        spec={
            "name": "node-0",
            "argv": ["sleep", "60"],
            "env": {},
            "cwd": "/",
            "label": "another/1/node-0",
            "ports": [],
        },
    )
    try:
        assert call_supervisor("cancel", tmp_path / "second" / node, grace=0) == {"phase": "absent", "left": []}
        assert is_running(state["agent"])
    finally:
        assert call_supervisor("cancel", tmp_path / "first" / node, grace=0)["left"] == []


def test_processes_of_a_job_are_listed_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent precedes its child also if the numbers of the processes have started again from the lowest."""
    start_times = {7: 500, 4_000_000: 400}
    monkeypatch.setattr(processes, "find_labelled", lambda label: list(start_times))
    monkeypatch.setattr(processes, "identify_process", lambda pid: ProcessId(pid, start_times[pid]))
    monkeypatch.setattr(ProcessId, "is_alive", True)
    assert [process.pid for process in JobProcesses(LABEL, []).find()] == [4_000_000, 7]


def test_missing_descriptors_do_not_hide_a_process() -> None:
    """Without a free descriptor no process can be looked at: that is an error, and no proof that none lives."""
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard_limit))  # stdin, stdout and stderr are open
    try:
        with pytest.raises(OSError, match="Too many open files"):
            find_labelled(LABEL)
        with pytest.raises(OSError, match="Too many open files"):
            identify_process(os.getpid())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft_limit, hard_limit))


def test_path_that_stands_for_no_label_has_no_supervisors(tmp_path: Path) -> None:
    """Ending the processes of a path that is not a run's touches no other process."""
    state = start_script(tmp_path / "kept", "sleep 60")
    try:
        assert (end_processes("", grace_s=0), is_running(state["agent"])) == ([], True)
    finally:
        assert call_supervisor("cancel", tmp_path / "kept", grace=0)["left"] == []
