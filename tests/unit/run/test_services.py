"""The sinks of a run: each gets every event, and none of their errors reaches the run."""

import pytest

from tests.builders.reports import short_report
from torchyard.model.errors import RunInUseError
from torchyard.model.event import EndReached, RunEvent, WaitEnded
from torchyard.model.finding import Finding, failed_check
from torchyard.run.services import NoArchive, Sink, Sinks


class FakeSink(Sink):
    """Records its calls; raises `error` in each of them, if it has one."""

    def __init__(self, calls: list[object], error: Exception | None = None) -> None:
        self.purpose = "show the fake" if error else "show the run"
        self._calls = calls
        self._error = error

    def check(self) -> tuple[Finding, ...]:
        return (failed_check("fake", "is missing", "install it"),)

    def take(self, event: RunEvent) -> None:
        self._calls.append(event)
        if self._error:
            raise self._error

    def finish(self, timeout_s: float) -> tuple[str, ...]:
        self._calls.append(timeout_s > 0)
        if self._error:
            raise self._error
        return ("fake has not got it",)


def test_error_of_a_sink_reaches_neither_the_run_nor_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """A sink that raises is logged once, and the next one gets the event."""
    calls: list[object] = []
    sinks = Sinks([FakeSink([], ValueError("full")), FakeSink(calls)])
    sinks.emit(WaitEnded())
    sinks.emit(WaitEnded())
    assert calls == [WaitEnded()] * 2
    assert caplog.messages == ["cannot show the fake: full (retrying; the job is not affected)"]


def test_run_that_another_process_owns_is_not_an_error_of_a_sink() -> None:
    """RunInUseError ends this process's part in the run, also out of a sink."""
    with pytest.raises(RunInUseError):
        Sinks([FakeSink([], RunInUseError("x", "another process"))]).emit(WaitEnded())


def test_all_sinks_send_before_one_is_waited_for() -> None:
    """At the end every sink gets the report before the first is waited for, and their losses are returned together."""
    calls: list[object] = []
    end = EndReached(short_report())
    assert Sinks([FakeSink(calls), FakeSink(calls)]).end(end.report) == ("fake has not got it",) * 2
    assert calls == [end, end, True, True]


def test_findings_are_warnings_after_the_first_attempt() -> None:
    """What a sink lacks fails preflight; for a later attempt, whose job may need hours, it is a warning."""
    sinks = Sinks([FakeSink([])])
    assert [check.verdict for check in sinks.check()] == ["failed"]
    assert [check.verdict for check in sinks.check(is_first_attempt=False)] == ["warning"]


def test_run_that_is_not_started_has_no_archive() -> None:
    """Before a run is started, nothing is archived, and nothing is missing there."""
    archive = NoArchive()
    archive.start()
    archive.await_logs(1)
    assert (archive.fetch(), archive.describe(), archive.settle()) == (True, "", None)
