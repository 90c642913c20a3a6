"""Commands beside a supervised process: their environment, their folder, and when there are none."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.supervised import build_argv, call_supervisor, start_script, wait_for_exit
from torchyard.host.enter import build_environment, describe_obstacle
from torchyard.host.processes import identify_process

SPEC = {"env": {"FOO": "from the plan"}, "recorder": "/recorder"}


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Path]:
    """The folder of a process that waits, with the recorder, in a work folder of its own."""
    folder = tmp_path / "run-a1" / "attempt-1" / "node-0"
    work = tmp_path / "work"
    work.mkdir()
    env = {"FOO": "a b", "PYTHONPATH": "/mine"}
    script = "exec sleep 600"
    start_script(folder, script, env=env, cwd=str(work), recorder="/recorder", label="run-a1/1/node-0")
    yield folder
    call_supervisor("cancel", folder, grace=1)


def enter(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [*build_argv("enter"), str(folder), *argv]
    return subprocess.run(command, input="a line\n", capture_output=True, text=True, check=False)


def test_command_has_the_environment_of_the_process(process: Path) -> None:
    """A command has the variables, the folder, the input and the exit code of its own, and not the job's label."""
    script = 'echo "$FOO|$PYTHONPATH|$PWD"; cat; env | grep -E "^TORCHYARD_(JOB|SUPERVISED|BLACK_BOX)="; exit 3'
    completed = enter(process, "sh", "-c", script)
    work = process.parents[2] / "work"
    assert (completed.stdout, completed.returncode) == (f"a b|/mine|{work}\na line\n", 3)


def test_command_does_not_end_with_the_job(process: Path) -> None:
    """A command beside the process is not a part of the job: its end neither waits for it nor kills it."""
    argv = [*build_argv("enter"), str(process), "cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as command:
        assert command.stdin
        assert command.stdout
        command.stdin.write(b"entered\n")
        command.stdin.flush()
        assert command.stdout.readline() == b"entered\n"
        state = call_supervisor("cancel", process, grace=1)
        assert (state["phase"], state["left"], command.poll()) == ("exited", [], None)
        command.stdin.close()
        assert command.wait(10) == 0


def test_ended_process_cannot_be_entered(process: Path) -> None:
    """A process that has ended, or never started, is one sentence with the name of its node."""
    call_supervisor("cancel", process, grace=1)
    wait_for_exit(process)
    completed = enter(process, "true")
    assert (completed.stderr, completed.returncode) == ("node-0 has ended with exit code -15\n", 1)
    completed = enter(process.parent / "node-1", "true")
    assert "node-1 does not run on this host" in completed.stderr


def test_program_that_does_not_exist_is_one_sentence(process: Path) -> None:
    """A command that cannot be started exits with 127, as in a shell."""
    completed = enter(process, "nosuch")
    assert completed.returncode == 127
    assert completed.stderr.startswith("cannot start nosuch in ")


def test_port_of_this_machine_needs_no_forwarding(process: Path) -> None:
    """The verb `forward` reports the address of a port that this machine has already."""
    command = [*build_argv("forward"), str(process), "16006", "6006"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output == "node-0 runs on this machine: its port 6006 is localhost:6006\n"


def test_unreadable_environment_is_that_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a process's environment cannot be read, a command has this host's with the variables of the spec."""
    monkeypatch.setenv("HERE", "yes")
    assert build_environment({}, SPEC).items() >= {"FOO": "from the plan", "HERE": "yes"}.items()
    overwritten = {"python: rank 0": ""}  # by setproctitle
    assert build_environment(overwritten, SPEC)["FOO"] == "from the plan"


def test_only_the_recorder_leaves_the_path_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder's folder is removed from PYTHONPATH, which is unset if it had nothing else."""
    monkeypatch.setenv("TERM", "xterm-kitty")
    environment = {"TORCHYARD_JOB": "run/1/node-0", "PYTHONPATH": "/recorder:/mine", "TERM": "dumb"}
    assert build_environment(environment, SPEC) == {"PYTHONPATH": "/mine", "TERM": "xterm-kitty"}
    assert "PYTHONPATH" not in build_environment(environment | {"PYTHONPATH": "/recorder"}, SPEC)


@pytest.mark.parametrize(
    ("state", "obstacle"),
    [
        ({"phase": "running", "elsewhere": "on another machine"}, "runs on another machine: run this command there"),
        ({"phase": "running", "detail": "its folder was removed"}, "cannot be entered: its folder was removed"),
        ({"phase": "absent"}, "does not run on this host: it has not started yet, or was removed"),
        ({"phase": "running", "agent": os.getpid(), "agent_start": 1}, "has just ended"),
    ],
)
def test_obstacle_is_stated(state: dict[str, Any], obstacle: str) -> None:
    """A process elsewhere, without a folder, or whose number now belongs to another one is not entered."""
    assert describe_obstacle(state) == obstacle


def test_process_without_its_supervisor_can_be_entered() -> None:
    """A process whose supervisor was killed still runs, and can be entered."""
    own = identify_process(os.getpid())
    assert describe_obstacle({"phase": "unsupervised", "agent": own.pid, "agent_start": own.start_time}) == ""
