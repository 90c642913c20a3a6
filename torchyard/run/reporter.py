"""What a run tells the orchestrator that started it, and asks of it: Prefect, or nobody but the terminal."""

import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol, Self

from torchyard.model.run import Report


class Reporter(Protocol):
    """One run's way to its orchestrator. No call holds the run up for longer than some seconds, and none raises.

    `stops`: exceptions, beside Ctrl-C, by which the orchestrator ends a run. `count`: how many processes have begun it.
    `watchdog`: the command that takes over from a process that died; `keep` or `stop` and the run's folder follow.
    """

    stops: tuple[type[BaseException], ...]
    count: int
    watchdog: tuple[str, ...]

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def check_cancelled(self) -> None:
        """CancelRequested where somebody has cancelled the run, and no signal has said so."""

    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled the run, as far as that can be known soon."""

    def is_void(self, stop: BaseException) -> bool:
        """Whether a stop means the orchestrator's own trouble, and not the run."""

    def was_asked_again(self) -> bool:
        """Whether a person has asked for the run again since it ended."""

    def show_progress(self, name: str, percent: float) -> None:
        """Show how far the job is."""

    def show_report(self, report: Report) -> None:
        """Show the end of the run."""

    def flush(self) -> None:
        """Wait a moment for what has been sent."""


class Terminated(BaseException):
    """SIGTERM, to a run that no orchestrator carries."""


class LocalReporter:
    """A run of the command line: its log and its report are on the terminal, and only signals end it.

    `asked_again`: a run that has ended begins anew.
    """

    stops: tuple[type[BaseException], ...] = (Terminated,)
    watchdog: tuple[str, ...] = (sys.executable, "-m", "torchyard.run.sweep")

    def __init__(self, count: int = 1, asked_again: bool = True) -> None:
        self.count, self._asked_again = count, asked_again
        self._before: Callable[[int, Any], Any] | int | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, _raise_terminated)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def check_cancelled(self) -> None:
        """Only signals cancel it."""

    def is_cancelled(self) -> bool:
        return False

    def is_void(self, stop: BaseException) -> bool:
        return False

    def was_asked_again(self) -> bool:
        return self._asked_again

    def show_progress(self, name: str, percent: float) -> None:
        """The log says it."""

    def show_report(self, report: Report) -> None:
        """The log has it."""

    def flush(self) -> None:
        """Nothing is on its way."""


def _raise_terminated(number: int, frame: Any) -> None:
    raise Terminated
