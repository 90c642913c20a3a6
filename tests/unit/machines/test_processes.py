"""Commands on hosts: how ssh is called, and what a command may print."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.processes.python_commands import LARGE_STDERR, build_command
from torchyard.common.project_root import ROOT
from torchyard.machines.processes import (
    MAX_OUTPUT_BYTES,
    Command,
    build_argv,
    follow_command,
    pipe_command,
    run_command,
)
from torchyard.model.errors import HostError

USER_CONFIG = (
    "Host gpu1\n  User me\n  BatchMode no\n  ServerAliveInterval 0\n  PermitLocalCommand yes\n  RemoteCommand tmux\n"
)


@pytest.fixture(scope="module")
def ssh_settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The settings that ssh derives from our options, with a user's configuration that contradicts them."""
    config = tmp_path_factory.mktemp("ssh") / "config"
    config.write_text(USER_CONFIG)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("TORCHYARD_SSH", f"ssh -G -F {config}")
        argv = build_argv("gpu1", Command(argv=("true",)))
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return dict(line.split(" ", 1) for line in output.splitlines() if " " in line)


@pytest.mark.parametrize(("key", "value"), [
    ("batchmode", "yes"),
    ("serveraliveinterval", "10"),
    ("serveralivecountmax", "3"),
    ("connecttimeout", "15"),
    ("requesttty", "false"),
    ("controlmaster", "false"),
    ("clearallforwardings", "yes"),
    ("permitlocalcommand", "no"),
    ("user", "me"),
])  # fmt: skip
def test_ssh_does_not_prompt_or_hang(ssh_settings: dict[str, str], key: str, value: str) -> None:
    """ssh asks no questions, notices a broken network and leaves nothing behind; all else is the user's choice."""
    assert ssh_settings[key] == value


def test_program_that_replaces_this_process_ends_by_sigpipe() -> None:
    """Python ignores SIGPIPE; the program that replaces it must not, or it would write on without a reader."""
    code = (
        "from torchyard.machines.processes import replace_process; replace_process(['sh', '-c', 'kill -PIPE $$; pwd'])"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, cwd=ROOT)
    assert (completed.stdout, completed.returncode) == (b"", -signal.SIGPIPE)


# --- what a command prints


def test_flood_on_stderr_does_not_block_a_command() -> None:
    """A command with much output on stderr is read, and its last line there is the reason of its failure."""
    assert run_command("localhost", build_command(f"{LARGE_STDERR}; print(1)")) == 1
    with pytest.raises(HostError, match=r"the last$"):
        run_command("localhost", build_command(f"{LARGE_STDERR}; sys.exit(1)"))


def test_flood_on_stderr_does_not_block_a_pipe() -> None:
    """Data fetched from a host is complete, however much its connection writes to stderr."""
    assert (
        pipe_command("localhost", build_command(f"{LARGE_STDERR}; print('one')"), lambda _, stdout: stdout.read())
        == b"one\n"
    )


def test_endless_response_is_refused() -> None:
    """Output that would fill the memory is refused."""
    with pytest.raises(HostError, match=f"its output is larger than {MAX_OUTPUT_BYTES >> 20} MiB"):
        run_command("localhost", build_command("while True: print('x' * 65536)"))


def test_command_that_hangs_is_killed() -> None:
    """A command that does not exit is killed after its timeout, and the error states that."""
    with pytest.raises(HostError, match=r"no answer within 0 s"):
        run_command("localhost", build_command("import time; time.sleep(60)"), timeout_s=0.3)


def test_input_that_is_not_read_does_not_outlast_the_timeout() -> None:
    """A command that does not read an input larger than a pipe is killed at its timeout."""
    with pytest.raises(HostError, match=r"no answer within 0 s"):
        run_command(
            "localhost", build_command("import time; time.sleep(60)", "x" * 2**20), timeout_s=0.2, retry_timeout_s=0
        )


def test_large_input_is_written_beside_a_large_output() -> None:
    """An input and an output that no pipe can hold arrive as they are, whichever is read first."""
    code = "import json, sys; print(json.dumps('y' * 2**20), flush=True); assert len(json.load(sys.stdin)) == 2**22"
    assert run_command("localhost", build_command(code, "x" * 2**22)) == "y" * 2**20


def test_command_may_respond_without_reading_its_input() -> None:
    """A command that responds and ends without reading its input has succeeded."""
    assert run_command("localhost", build_command("print(1)", "x" * 2**20)) == 1


# --- a child that keeps the pipes of a command open, as a ProxyCommand or the master of a jump host does

CHILD = "import subprocess, sys; child = subprocess.Popen(['sleep', '60']{}); print(child.pid)"
KEEPS_STDERR = build_command(CHILD.format(", stdout=subprocess.DEVNULL"))
KEEPS_BOTH = build_command(CHILD.format(""))


def follow(command: Command) -> int:
    """Follow a command to its end; return what it has printed."""
    output = bytearray()
    assert follow_command("localhost", command, lambda _, data: output.extend(data)) == 0
    return int(output)


def end_child(pid: int) -> None:
    """End the child of a command. ProcessLookupError if it has ended: the command's end waited for it."""
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("call", [
    lambda: run_command("localhost", KEEPS_BOTH),
    lambda: pipe_command("localhost", KEEPS_STDERR, lambda _, stdout: int(stdout.read())),
    lambda: follow(KEEPS_BOTH),
], ids=["run", "pipe", "follow"])  # fmt: skip
def test_command_has_ended_once_it_has_exited(call: Callable[[], int]) -> None:
    """A command that has exited is over, with all of its output, although a child keeps its pipes open."""
    end_child(call())


def test_error_of_a_command_is_read_although_a_child_keeps_stderr_open() -> None:
    """The last line on stderr is the reason of a failed command, although a child keeps stderr open."""
    code = "print('no route', child.pid, file=sys.stderr); sys.exit(1)"
    command = Command((*KEEPS_STDERR.argv[:-1], f"{KEEPS_STDERR.argv[-1]}; {code}"))
    with pytest.raises(HostError, match="no route") as caught:
        pipe_command("localhost", command, lambda _, stdout: stdout.read())
    end_child(int(str(caught.value).rpartition(" ")[2]))
