"""The watchdog of a run: it starts the command that takes over when its launcher has died."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from torchyard.run import watchdog

WATCHDOG = (sys.executable, "-I", "-S", str(Path(watchdog.__file__)))


@pytest.mark.parametrize(
    ("policy", "sent", "verb"),
    [
        ("keep", "", "keep"),
        ("stop", "", "stop"),
        ("keep", "ending\n", "stop"),
        ("keep", "end", "keep"),
        ("keep", "done\n", None),
        ("stop", "ending\ndone\n", None),
    ],
)
def test_closed_pipe_runs_the_command(policy: str, sent: str, verb: str | None) -> None:
    """If the pipe closes without `done`, the command is run: with `stop` once teardown has started."""
    command = [*WATCHDOG, policy, "/bin/echo", "LOST", "/runs/a LOST"]
    process = subprocess.run(command, input=sent, capture_output=True, text=True, check=True, timeout=30)
    assert process.stdout == ("" if verb is None else f"{verb} /runs/a LOST\n")


OWNER = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE); print(1); time.sleep(60)"


def test_killed_launcher_is_noticed(tmp_path: Path) -> None:
    """A killed launcher writes nothing, but its pipe is closed."""
    verb_path = tmp_path / "verb"
    command = [*WATCHDOG, "keep", "/bin/sh", "-c", 'echo $0 > "$1"', "LOST", str(verb_path)]
    with subprocess.Popen([sys.executable, "-u", "-c", OWNER, *command], stdout=subprocess.PIPE) as owner:
        assert owner.stdout
        owner.stdout.readline()
        assert not verb_path.exists()
        owner.send_signal(signal.SIGKILL)
        wait_until(lambda: verb_path.exists() and verb_path.read_text() == "keep\n")
