"""Signals: which ones end a run on purpose, and how they are held off while something must finish."""

import asyncio
import signal
import threading
from typing import Self


class CancelRequested(BaseException):
    """The run was cancelled and no signal arrived: a dead worker sends none."""


# How Python ends a run. None of these is an Exception, so `except Exception` does not catch them.
STOP_EXCEPTIONS = (KeyboardInterrupt, asyncio.CancelledError, CancelRequested)


class SignalHold:
    """Ignores SIGTERM and SIGINT between `begin` and the end of the block.

    Blocking them would not help: other threads of Prefect would receive them.
    """

    def __enter__(self) -> Self:
        mine = threading.current_thread() is threading.main_thread()
        self._before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)} if mine else {}
        return self

    def begin(self) -> None:
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def find_hidden_stop(error: BaseException, stops: tuple[type[BaseException], ...]) -> BaseException | None:
    """The stop that caused an error, if any: Prefect's engine itself fails if one arrives while it starts a task."""
    at: BaseException | None = error
    while at is not None and not isinstance(at, stops):
        at = at.__cause__ or at.__context__
    return at


def describe_stop(stop: BaseException) -> str:
    match stop:
        case KeyboardInterrupt():
            return "Ctrl-C"
        case asyncio.CancelledError():
            return "the flow's timeout"
        case _:
            return "SIGTERM"
