"""Raw mode of a terminal, and its end."""

import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from torchyard.common.project_root import ROOT
from torchyard.kube.terminal import TerminalSize, raw_terminal, read_size

PROGRAM = """
import signal
from torchyard.kube.terminal import raw_terminal
with raw_terminal(0):
    print("ready", flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT])
def test_mode_is_restored_before_a_signal_ends_the_process(number: signal.Signals) -> None:
    """A process that a signal ends leaves the terminal in the mode that it had before."""
    master, slave = pty.openpty()
    mode = termios.tcgetattr(slave)
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=slave, stdout=subprocess.PIPE, stderr=slave, cwd=ROOT) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        assert termios.tcgetattr(slave) != mode
        process.send_signal(number)
        assert process.wait(20) == -number
    assert termios.tcgetattr(slave) == mode
    os.close(master)
    os.close(slave)


def test_mode_and_handlers_are_restored_after_an_error() -> None:
    """An error in the body restores the mode and the handlers of signals."""
    master, slave = pty.openpty()
    mode = termios.tcgetattr(slave)
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyError), raw_terminal(slave):
        raise KeyError
    assert (termios.tcgetattr(slave), signal.getsignal(signal.SIGTERM)) == (mode, handler)
    termios.tcsetwinsize(slave, (33, 99))
    assert read_size(slave) == TerminalSize(columns=99, rows=33)
    os.close(master)
    os.close(slave)


def test_size_of_a_file_is_an_error(tmp_path: Path) -> None:
    """A descriptor that is not a terminal has no size."""
    with open(tmp_path / "file", "w") as file, pytest.raises(OSError, match="Inappropriate ioctl"):
        read_size(file.fileno())
