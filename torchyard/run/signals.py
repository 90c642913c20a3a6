"""Signals: which ones end a run on purpose, and holding them off while something must come to its end."""

import asyncio
import signal
import threading
from typing import Self


class CancelRequested(BaseException):
    """The run was cancelled, and no signal came: a worker that died delivers none."""


# How Python tells a run that it shall end: none of them is an Exception, or would be caught as one.
STOP_EXCEPTIONS = (KeyboardInterrupt, asyncio.CancelledError, CancelRequested)


class SignalHold:
    """SIGTERM and SIGINT do nothing between `begin` and the end of the block.

    Blocking them would not help: Prefect has other threads to take them.
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
    """The stop that an error came from: Prefect's engine fails by itself where one strikes as it begins a task."""
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
