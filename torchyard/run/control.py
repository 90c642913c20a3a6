"""How a run is controlled by the orchestrator that started it: Prefect, or only a terminal."""

import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol, Self


class RunControl(Protocol):
    """Connects one run to its orchestrator: `LocalControl` here, `PrefectControl` in torchyard/tasks/flow_run.

    The run enters it first and leaves it last; all calls come from the run's thread. No call delays the run for more
    than a few seconds, and only `check_cancelled` raises.

    stops      exceptions, besides Ctrl-C, by which the orchestrator ends a run
    count      how many processes have started this run, this one included
    watchdog   the command that takes over from a process that died; `keep` or `stop` and the run's folder are appended
    link       where the orchestrator shows the run to people; empty if it does not
    flow_run_id  the orchestrator's id of the flow run that contains the run; empty without an orchestrator
    is_automatic  whether the orchestrator starts lost runs again; else only a user starts each process
    """

    stops: tuple[type[BaseException], ...]
    count: int
    watchdog: tuple[str, ...]
    link: str
    flow_run_id: str
    is_automatic: bool

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def check_cancelled(self) -> None:
        """Raise CancelRequested if the run was cancelled and no signal has arrived."""

    def is_cancelled(self) -> bool:
        """Whether the run was cancelled; False also if the orchestrator does not answer within seconds."""

    def will_be_resumed(self) -> bool:
        """Whether the orchestrator starts another process of this run after it has stopped this one."""

    def is_spurious_stop(self, stop: BaseException) -> bool:
        """Whether a stop was caused by an error of the orchestrator itself and is not meant for the run."""

    def is_retry_requested(self, active_count: int) -> bool:
        """Whether a user has requested the run again since it ended, and since its process with this count started."""


class Terminated(BaseException):
    """SIGTERM to a run without an orchestrator."""


class LocalControl:
    """For a run on the command line: only signals cancel the run.

    `is_retry_requested`: whether a run that has ended starts again.
    """

    stops: tuple[type[BaseException], ...] = (Terminated,)
    watchdog: tuple[str, ...] = (sys.executable, "-m", "torchyard.assembly")
    link = ""
    flow_run_id = ""
    is_automatic = False

    def __init__(self, count: int = 1, *, is_retry_requested: bool = True) -> None:
        self.count = count
        self._is_retry_requested = is_retry_requested
        self._old_handler: Callable[[int, Any], Any] | int | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._old_handler = signal.signal(signal.SIGTERM, _raise_terminated)
        return self

    def __exit__(self, *_: object) -> None:
        if self._old_handler is not None:
            signal.signal(signal.SIGTERM, self._old_handler)

    def check_cancelled(self) -> None:
        """Do nothing: only signals cancel the run."""

    def is_cancelled(self) -> bool:
        return False

    def will_be_resumed(self) -> bool:
        return False

    def is_spurious_stop(self, stop: BaseException) -> bool:
        return False

    def is_retry_requested(self, active_count: int) -> bool:
        return self._is_retry_requested


def _raise_terminated(number: int, frame: Any) -> None:
    raise Terminated
