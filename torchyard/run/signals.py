"""What stops a run: which end follows from it, and how signals are held off while something must finish."""

import asyncio
import signal
import threading
from collections.abc import Callable
from typing import Protocol, Self

from torchyard.backend import backend_of
from torchyard.common.log import get_log
from torchyard.model.errors import DetachedError, HandedOverError, RunInUseError, TorchyardError
from torchyard.model.plan import Plan
from torchyard.model.run import RunEnd
from torchyard.run.reporter import Reporter


class CancelRequested(BaseException):
    """The run was cancelled and no signal arrived: a dead worker sends none."""


# How Python ends a run. None of these is an Exception, so `except Exception` does not catch them.
STOP_EXCEPTIONS = (KeyboardInterrupt, asyncio.CancelledError, CancelRequested)


class SignalHold:
    """Ignores SIGTERM and SIGINT between `ignore_signals` and the end of the block.

    Blocking them would not help: other threads of Prefect would receive them.
    """

    def __enter__(self) -> Self:
        is_main_thread = threading.current_thread() is threading.main_thread()
        self._old_handlers = (
            {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)} if is_main_thread else {}
        )
        return self

    def ignore_signals(self) -> None:
        for number in self._old_handlers:
            signal.signal(number, signal.SIG_IGN)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)


class _StoppableRun(Protocol):
    """What a stop needs to know of a run (see Runner)."""

    reporter: Reporter
    plan: Plan | None
    may_run: bool


def protect_run(run: _StoppableRun, operation: Callable[[], RunEnd], signals: SignalHold) -> RunEnd:
    """Turn whatever happens in `work` into an end with a sentence, so that teardown and report always follow.

    DetachedError if what happened says nothing about the job, and the job may be running: it is left alone.
    """
    stops: tuple[type[BaseException], ...] = (*STOP_EXCEPTIONS, *run.reporter.stops)
    try:
        return operation()
    except RunInUseError:
        raise
    except TorchyardError as error:
        return _fail_or_leave(run, str(error), error)
    except stops as stop:
        if run.reporter.is_void(stop):
            return protect_run(run, operation, signals)
        return _end_stopped(run, stop, signals)
    except Exception as error:
        if hidden := find_hidden_stop(error, stops):
            return _end_stopped(run, hidden, signals)
        get_log().exception("a fault in torchyard itself")
        return _fail_or_leave(run, f"a fault in torchyard itself: {type(error).__name__}: {error}", error)


def _end_stopped(run: _StoppableRun, stop: BaseException, signals: SignalHold) -> RunEnd:
    signals.ignore_signals()
    if run.reporter.is_cancelled():
        return RunEnd("cancelled", "cancelled through Prefect")
    if run.reporter.is_handed_on():
        if run.plan:
            backend_of(run.plan).hand_over()
        raise HandedOverError(f"stopped by {describe_stop(stop)}")
    return RunEnd("stopped", f"stopped by {describe_stop(stop)}")


def _fail_or_leave(run: _StoppableRun, sentence: str, error: Exception) -> RunEnd:
    if run.may_run:
        raise DetachedError(sentence) from error
    return RunEnd("failed", sentence)


def find_hidden_stop(error: BaseException, stops: tuple[type[BaseException], ...]) -> BaseException | None:
    """The stop that caused an error, if any: Prefect's engine itself fails if one arrives while it starts a task."""
    current: BaseException | None = error
    while current is not None and not isinstance(current, stops):
        current = current.__cause__ or current.__context__
    return current


def describe_stop(stop: BaseException) -> str:
    match stop:
        case KeyboardInterrupt():
            return "Ctrl-C"
        case asyncio.CancelledError():
            return "the flow's timeout"
        case _:
            return "SIGTERM"
