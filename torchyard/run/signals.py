"""Turns what stops a run (signals, cancels, errors) into its end, and ignores signals while a run ends."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from typing import Protocol, Self

from torchyard.backends import owner_of
from torchyard.common.log import get_log
from torchyard.model.errors import (
    ArchiveError,
    DetachedError,
    HandedOverError,
    RunInUseError,
    TorchyardError,
    list_findings,
)
from torchyard.model.plan import Plan
from torchyard.model.run import RunEnd
from torchyard.run.control import RunControl


class CancelRequested(BaseException):
    """The run was cancelled, and no signal arrived, because its worker is dead."""


# How Python ends a run. None of these is an Exception, so `except Exception` does not catch them.
STOP_EXCEPTIONS = (KeyboardInterrupt, asyncio.CancelledError, CancelRequested)
_SIGNAL_TEXTS = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}


class SignalHold:
    """Ignores SIGTERM and SIGINT between `ignore_signals` and the end of the block, and records those before.

    `call_at_interrupt` gives a second Ctrl-C a meaning after that.

    Blocking them would not help: other threads of Prefect would receive them. The handlers stay in place until then:
    Prefect hands a run over or cancels it only if its own handler is installed (see `_prefect_sigterm_handler` in
    prefect/utilities/engine). So signals are recorded by Python's wakeup descriptor.
    """

    _wakeup_read_fd: int | None = None  # None outside the block and on other threads than the main thread

    def __enter__(self) -> Self:
        is_main_thread = threading.current_thread() is threading.main_thread()
        self._old_handlers = (
            {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)} if is_main_thread else {}
        )
        if is_main_thread:
            self._wakeup_read_fd, self._wakeup_write_fd = os.pipe()
            os.set_blocking(self._wakeup_read_fd, False)
            os.set_blocking(self._wakeup_write_fd, False)
            self._old_wakeup_fd = signal.set_wakeup_fd(self._wakeup_write_fd, warn_on_full_buffer=False)
        return self

    def take_stop_signal(self) -> signal.Signals | None:
        """The last SIGTERM or SIGINT since the previous call, or since the start of the block; None without one."""
        if self._wakeup_read_fd is None:
            return None
        try:
            numbers = os.read(self._wakeup_read_fd, 2**16)  # one byte a signal; the size of a pipe
        except BlockingIOError:
            return None
        stops = [number for number in numbers if number in self._old_handlers]
        return signal.Signals(stops[-1]) if stops else None

    def ignore_signals(self) -> None:
        for number in self._old_handlers:
            signal.signal(number, signal.SIG_IGN)

    def call_at_interrupt(self, action: Callable[[], None]) -> None:
        """Call `action` at each further Ctrl-C, which ends nothing by itself; SIGTERM is ignored as before."""
        if self._old_handlers:
            signal.signal(signal.SIGINT, lambda *_: action())

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        if self._wakeup_read_fd is not None:
            signal.set_wakeup_fd(self._old_wakeup_fd)
            os.close(self._wakeup_read_fd)
            os.close(self._wakeup_write_fd)
            self._wakeup_read_fd = None


class _StoppableRun(Protocol):
    """The attributes of a run that a stop reads (see Runner)."""

    control: RunControl
    plan: Plan | None
    may_run: bool


def protect_run(run: _StoppableRun, operation: Callable[[], RunEnd], signals: SignalHold) -> RunEnd:
    """Run `operation`; turn every error and stop in it into an end, so that teardown and report always follow.

    Raises RunInUseError if another process owns the run, HandedOverError if the orchestrator resumes the run elsewhere,
    and DetachedError if an error does not end the job and the job may be running: it then keeps running.
    """
    stops: tuple[type[BaseException], ...] = (*STOP_EXCEPTIONS, *run.control.stops)
    while True:  # until a stop is not spurious; not by recursion, which would make the stop the context of later errors
        try:
            return operation()
        except RunInUseError:
            raise
        except TorchyardError as error:
            return _fail_or_leave(run, RunEnd("failed", str(error), list_findings(error)), error)
        except stops as stop:
            if not run.control.is_spurious_stop(stop):
                return _end_stopped(run, describe_stop(stop), signals)
            signals.take_stop_signal()
        except Exception as error:
            cause = _describe_hidden_stop(error, stops, signals)
            if cause:
                return _end_stopped(run, cause, signals)
            return _fail_or_leave(run, RunEnd("failed", report_internal_error(error)), error)


def report_internal_error(error: Exception) -> str:
    """Log an error that no step expects, with its traceback; return it as a sentence. In an `except` block."""
    get_log().exception("internal error in torchyard")
    return f"internal error in torchyard: {type(error).__name__}: {error}"


def _describe_hidden_stop(
    error: BaseException, stops: tuple[type[BaseException], ...], signals: SignalHold
) -> str | None:
    """What stopped the run, if an error hides it; None if nothing did.

    Compiled code, such as pydantic's, reports the exception of a signal's handler as an error without a cause.
    """
    hidden_stop = find_hidden_stop(error, stops)
    if hidden_stop:
        return describe_stop(hidden_stop)
    stop_signal = signals.take_stop_signal()
    return _SIGNAL_TEXTS[stop_signal] if stop_signal else None


def _end_stopped(run: _StoppableRun, cause: str, signals: SignalHold) -> RunEnd:
    signals.ignore_signals()
    if run.control.is_cancelled():
        return RunEnd("cancelled", "cancelled through Prefect")
    if run.control.will_be_resumed():
        if run.plan:
            owner_of(run.plan).hand_over()
        raise HandedOverError(f"stopped by {cause}")
    return RunEnd("stopped", f"stopped by {cause}")


def _fail_or_leave(run: _StoppableRun, end: RunEnd, error: Exception) -> RunEnd:
    """The end that an error is for a run without a job. DetachedError if the job may be running.

    So is that of the archive, which may have the logs of a job that has ended: it is no fact about the job.
    """
    if run.may_run or isinstance(error, ArchiveError):
        raise DetachedError(end.sentence) from error
    return end


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
            return _SIGNAL_TEXTS[signal.SIGINT]
        case asyncio.CancelledError():
            return "the flow's timeout"
        case _:
            return _SIGNAL_TEXTS[signal.SIGTERM]
