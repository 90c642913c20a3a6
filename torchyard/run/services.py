"""What surrounds the pipeline of a run: the sinks of its events, its archive, and the comparison with earlier runs.

A run knows only these interfaces; torchyard/assembly.py chooses what implements them.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from torchyard.common.local_errors import LocalErrorGuard
from torchyard.common.outbox import share_timeout
from torchyard.model.event import EndReached, RunEvent
from torchyard.model.finding import Finding, warning_check
from torchyard.model.profile import Profile
from torchyard.model.run import Collected, End, Report
from torchyard.model.trend import TrendVerdict

# How long a run waits at its end for all receivers together: a busy machine takes half of it to import mlflow.
_END_TIMEOUT_S = 30.0


class Sink:
    """Shows, records or sends what happens in one run. This class ignores everything.

    All methods are called by the run's thread. None may delay the run: what takes time is done on a separate thread
    (see common/outbox.py), for which only `finish` and ReportWritten may wait. An error that is raised is logged once
    and does not affect the run.
    """

    purpose = "show the run"  # completes the sentence "cannot ..."

    def check(self) -> Iterable[Finding]:
        """Preflight's findings: what this sink lacks on this machine."""
        return ()

    def take(self, event: RunEvent) -> None:
        """Take an event of the run; those that do not matter here are ignored."""

    def finish(self, timeout_s: float) -> Iterable[str]:
        """Wait until everything is delivered, at most `timeout_s`; return a sentence for each thing that is not."""
        return ()


class Sinks:
    """All sinks of one run. None of their errors reaches the run."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks
        self._local_errors = LocalErrorGuard()

    def check(self, *, is_first_attempt: bool = True) -> tuple[Finding, ...]:
        """Preflight's findings of all sinks; after the first attempt failures are only warnings."""
        checks = [check for sink in self._sinks for check in sink.check()]
        if is_first_attempt:
            return tuple(checks)
        return tuple(
            warning_check(check.where, check.what, check.remedy) if check.verdict == "failed" else check
            for check in checks
        )

    def emit(self, event: RunEvent) -> None:
        """Pass an event to each sink."""
        for sink in self._sinks:
            with self._local_errors.tolerate(sink.purpose, ignore_errors=True):
                sink.take(event)

    def end(self, report: Report) -> tuple[str, ...]:
        """Emit EndReached, and wait for the deliveries of all sinks; return what was not delivered within the timeout.

        All sinks start to send before the first of them is waited for.
        """
        self.emit(EndReached(report))
        losses: list[str] = []
        for sink, remaining_s in share_timeout(self._sinks, _END_TIMEOUT_S):
            with self._local_errors.tolerate(sink.purpose, ignore_errors=True):
                losses += sink.finish(remaining_s)
        return tuple(losses)


class Archive(Protocol):
    """Copies a run's folder to a store while the run continues (see torchyard/archive/copier.py)."""

    def fetch(self, timeout_s: float | None = None) -> bool:
        """Update the folder with what the archive contains; return False, with a warning, if it does not answer.

        Its logs follow later.
        """

    def await_logs(self, attempt: int) -> None:
        """Wait for those logs of an attempt that `fetch` has found, while they arrive; ArchiveError if they do not."""

    def start(self, profile: Profile | None = None) -> None:
        """Copy from now on, and fetch the history of the profile's runs."""

    def describe(self) -> str:
        """Where the run is archived, or what prevents it; empty without an archive."""

    def settle(self) -> str | None:
        """Copy the remaining files; return what the archive lacks, None if it is complete."""


class OpenArchive(Protocol):
    """Opens the archive of a run that this process owns."""

    def __call__(
        self, folder: Path, check_owner: Callable[[], None], *, is_resumed: bool
    ) -> AbstractContextManager[Archive]: ...


class NoArchive:
    """The archive of a run that is not started yet."""

    def fetch(self, timeout_s: float | None = None) -> bool:
        return True

    def await_logs(self, attempt: int) -> None:
        """Do nothing."""

    def start(self, profile: Profile | None = None) -> None:
        """Do nothing."""

    def describe(self) -> str:
        return ""

    def settle(self) -> str | None:
        return None


class Judgement(NamedTuple):
    """How the number of a run compares with those of earlier runs.

    verdict: None if nothing is compared.
    history: the file with the numbers of the profile's runs.
    """

    verdict: TrendVerdict | None
    history: str


class Judge(Protocol):
    """Compares a run that ends now with earlier runs. `started_at`: of the run, in Unix time."""

    def __call__(
        self, profile: Profile, folder: Path, end: End, collected: Collected | None, started_at: float
    ) -> Judgement: ...


class RunServices(NamedTuple):
    """The surroundings of one run."""

    sinks: Sequence[Sink]
    open_archive: OpenArchive
    judge: Judge
