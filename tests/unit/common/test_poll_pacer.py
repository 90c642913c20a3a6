"""PollPacer: how long a poll is delayed by the cost of the one before."""

import time

import pytest

from torchyard.common.poll_pacer import MAX_SLEEP_S, PollPacer


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The delays before the polls, which are not waited for."""
    delays: list[float] = []
    monkeypatch.setattr(time, "sleep", delays.append)
    return delays


def spend(monkeypatch: pytest.MonkeyPatch, *costs_s: float) -> None:
    """Make each poll cost so many seconds of a processor."""
    times: list[float] = []
    for index, cost_s in enumerate(costs_s):
        times += [float(index), index + cost_s]
    monkeypatch.setattr(time, "thread_time", lambda: times.pop(0))


def test_delay_follows_the_cost_of_the_poll_before(monkeypatch: pytest.MonkeyPatch, delays: list[float]) -> None:
    """Polls take a fiftieth of a processor, and an exception is never delayed by more than half a second."""
    spend(monkeypatch, 0.001, 0.004, 0.3, 0.0)
    pacer = PollPacer()
    for _ in range(4):
        with pacer.pace():
            pass
    assert delays == pytest.approx([0.0, 0.05, 0.2, MAX_SLEEP_S])


def test_urgent_poll_is_not_delayed(monkeypatch: pytest.MonkeyPatch, delays: list[float]) -> None:
    """A poll that has more to read begins at once; its cost counts although it fails."""
    spend(monkeypatch, 0.004, 0.004, 0.0)
    pacer = PollPacer()
    with pytest.raises(ValueError, match="broken"), pacer.pace():
        raise ValueError("broken")
    with pacer.pace(is_urgent=True):
        pass
    with pacer.pace():
        pass
    assert delays == pytest.approx([0.0, 0.2])
