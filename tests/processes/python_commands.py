"""Commands that run Python code on this machine."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from torchyard.machines.processes import Command

# Code that prints 800 KB on stderr, more than a pipe holds.
LARGE_STDERR = (
    "import sys; sys.stderr.write('warning\\n' * 100_000); sys.stderr.write('the last\\n'); sys.stderr.flush()"
)


def build_command(code: str, input_value: object = None) -> Command:
    """A command that runs the code; `input_value` is its input, None if it has none."""
    return Command(argv=(sys.executable, "-I", "-S", "-c", code), input=input_value)


@contextmanager
def running_python(code: str) -> Iterator[int]:
    """A process that runs the code, by its id; it and its children are killed at the end."""
    process = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
