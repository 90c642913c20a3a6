"""Turns what stops a run (signals, cancels, errors) into its end, and ignores signals while a run ends."""

import asyncio
import signal
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Protocol, Self

from torchyard.backend import backend_of
from torchyard.common.log import get_log
from torchyard.model.errors import DetachedError, HandedOverError, RunInUseError, TorchyardError
from torchyard.model.plan import Plan
from torchyard.model.run import RunEnd
from torchyard.run.reporter import Reporter


class CancelRequested(BaseException):
    """The run was cancelled, and no signal arrived, because its worker is dead."""


# How Python ends a run. None of these is an Exception, so `except Exception` does not catch them.
STOP_EXCEPTIONS = (KeyboardInterrupt, asyncio.CancelledError, CancelRequested)


class SignalHold:
    """Ignores SIGTERM and SIGINT between `ignore_signals` and the end of the block.

    Blocking them would not help: other threads of Prefect would receive them.

    last_stop: the exception with which the handler of a signal has ended the block's work, or None. Python raises it
        wherever the main thread is. Compiled code, such as pydantic's, may report it as an error of its own, which does
        not name it as its cause.
    """

    last_stop: BaseException | None = None

    def __enter__(self) -> Self:
        is_main_thread = threading.current_thread() is threading.main_thread()
        self._old_handlers = (
            {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)} if is_main_thread else {}
        )
        for number, handler in self._old_handlers.items():
            if callable(handler):
                signal.signal(number, partial(self._handle, handler))
        return self

    def _handle(self, handler: Callable[[int, FrameType | None], Any], number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException as stop:
            self.last_stop = stop
            raise

    def ignore_signals(self) -> None:
        for number in self._old_handlers:
            signal.signal(number, signal.SIG_IGN)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)


class _StoppableRun(Protocol):
    """The attributes of a run that a stop reads (see Runner)."""

    reporter: Reporter
    plan: Plan | None
    may_run: bool


def protect_run(run: _StoppableRun, operation: Callable[[], RunEnd], signals: SignalHold) -> RunEnd:
    """Run `operation`; turn every error and stop in it into an end, so that teardown and report always follow.

    Raises RunInUseError if another process owns the run, HandedOverError if the orchestrator resumes the run elsewhere,
    and DetachedError if an error does not end the job and the job may be running: it then keeps running.
    """
    stops: tuple[type[BaseException], ...] = (*STOP_EXCEPTIONS, *run.reporter.stops)
    try:
        return operation()
    except RunInUseError:
        raise
    except TorchyardError as error:
        return _fail_or_leave(run, str(error), error)
    except stops as stop:
        if run.reporter.is_spurious_stop(stop):
            signals.last_stop = None
            return protect_run(run, operation, signals)
        return _end_stopped(run, stop, signals)
    except Exception as error:
        hidden_stop = find_hidden_stop(error, stops) or signals.last_stop
        if hidden_stop:
            return _end_stopped(run, hidden_stop, signals)
        get_log().exception("internal error in torchyard")
        return _fail_or_leave(run, f"internal error in torchyard: {type(error).__name__}: {error}", error)


def _end_stopped(run: _StoppableRun, stop: BaseException, signals: SignalHold) -> RunEnd:
    signals.ignore_signals()
    if run.reporter.is_cancelled():
        return RunEnd("cancelled", "cancelled through Prefect")
    if run.reporter.will_be_resumed():
        if run.plan:
            backend_of(run.plan).hand_over()
        raise HandedOverError(f"stopped by {describe_stop(stop)}")
    return RunEnd("stopped", f"stopped by {describe_stop(stop)}")


def _fail_or_leave(run: _StoppableRun, sentence: str, error: Exception) -> RunEnd:
    if run.may_run:
        raise DetachedError(sentence) from error
    return RunEnd("failed", sentence)


def find_hidden_stop(error: BaseException, stops: tuple[type[BaseException], ...]) -> BaseException | None:
    """The stop that caused an error; None if no stop did.

    A stop that arrives while Prefect's engine starts a task makes the engine itself fail.
    """
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
