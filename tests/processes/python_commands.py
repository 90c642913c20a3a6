"""Commands that run Python code on this machine."""

import sys

from torchyard.machines.processes import Command

# Code that prints 800 KB on stderr, more than a pipe holds.
LARGE_STDERR = (
    "import sys; sys.stderr.write('warning\\n' * 100_000); sys.stderr.write('the last\\n'); sys.stderr.flush()"
)


def build_command(code: str) -> Command:
    return Command(argv=(sys.executable, "-I", "-S", "-c", code))
