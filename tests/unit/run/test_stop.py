"""Stopping a job early: the time that it has left."""

import logging
import threading

import pytest

from torchyard.model.errors import HostError
from torchyard.run import stop
from torchyard.run.stop import StopCountdown


def test_second_request_ends_the_job_at_once() -> None:
    """Once it is urgent, the job is killed, and only once."""
    is_urgent = threading.Event()
    is_killed = threading.Event()
    with StopCountdown(is_killed.set, is_urgent, grace_s=600.0):
        assert not is_killed.wait(0.01)
        is_urgent.set()
        assert is_killed.wait(30)


def test_remaining_time_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The grace is logged at once, and what is left of it from time to time."""
    monkeypatch.setattr(stop, "_POLL_INTERVAL_S", 0.0)
    monkeypatch.setattr(stop, "_REPORT_INTERVAL_S", 0.0)
    has_reported = threading.Event()

    class Reported(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            if "s left" in record.getMessage():
                has_reported.set()
            return True

    caplog.handler.addFilter(Reported())
    with caplog.at_level(logging.INFO), StopCountdown(pytest.fail, threading.Event(), grace_s=600.0):
        assert has_reported.wait(30)
    assert "600 s to save its work" in caplog.messages[0]


def test_failed_kill_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A host that does not answer costs only a warning, because the stop goes on."""
    is_urgent = threading.Event()
    is_urgent.set()
    has_failed = threading.Event()

    def kill() -> None:
        has_failed.set()
        raise HostError("gpu1", "stop node-0", "no route to host")

    with StopCountdown(kill, is_urgent, grace_s=600.0):
        assert has_failed.wait(30)
    assert "no route to host" in caplog.text
