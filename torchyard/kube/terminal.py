"""This process's terminal: its size, and raw mode, in which every key goes to a program elsewhere."""

import contextlib
import os
import signal
import termios
import tty
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class TerminalSize(NamedTuple):
    """The size of a terminal in characters."""

    columns: int
    rows: int


def read_size(descriptor: int) -> TerminalSize:
    """The size of a terminal. OSError if the descriptor is not one."""
    size = os.get_terminal_size(descriptor)
    return TerminalSize(size.columns, size.lines)


@contextlib.contextmanager
def raw_terminal(descriptor: int) -> Iterator[None]:
    """Put a terminal into raw mode, and restore its mode at the end, also if a signal ends this process.

    Only the main thread may enter it, because only it may set handlers of signals.
    """
    mode = termios.tcgetattr(descriptor)

    def restore_and_die(number: int, _: FrameType | None) -> None:
        termios.tcsetattr(descriptor, termios.TCSANOW, mode)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    old_handlers = {number: signal.signal(number, restore_and_die) for number in _ENDING_SIGNALS}
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, mode)
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
