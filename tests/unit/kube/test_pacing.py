"""The pace of tries that follow refusals: slow while all are refused, fast after successes, and in order."""

import asyncio
from types import SimpleNamespace

import pytest

from torchyard.kube import pacing
from torchyard.kube.pacing import RetryPacer


class Clock:
    """A clock that only moves while a coroutine sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self._real_sleep = asyncio.sleep
        monkeypatch.setattr(pacing, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    async def sleep(self, delay_s: float) -> None:
        self.now += delay_s
        await self._real_sleep(0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def pass_all(clock: Clock, pacer: RetryPacer, count: int, *, needed: bool = True) -> list[float]:
    """The times at which `count` tries pass that begin to wait at once, in their order; empty if not needed."""
    times: list[float] = []

    async def try_once() -> None:
        if await pacer.wait(lambda: needed):
            times.append(clock.now)

    async def run() -> None:
        await asyncio.gather(*(try_once() for _ in range(count)))

    asyncio.run(run())
    return times


@pytest.fixture
def pacer() -> RetryPacer:
    """A pacer after many refusals."""
    refused_pacer = RetryPacer()
    for _ in range(100):
        refused_pacer.record_refusal()
    return refused_pacer


def test_tries_are_few_while_all_are_refused(clock: Clock, pacer: RetryPacer) -> None:
    """After many refusals two tries pass a second, however many wait."""
    times = pass_all(clock, pacer, 11)
    assert times[-1] - times[0] == pytest.approx(5.0, abs=0.01)


def test_successes_raise_the_rate(clock: Clock, pacer: RetryPacer) -> None:
    """A few successes are enough for hundreds of tries within seconds."""
    for _ in range(5):
        pacer.record_success(is_retry=True)
    times = pass_all(clock, pacer, 101)
    assert times[-1] - times[0] == pytest.approx(2.0, abs=0.01)


def test_try_that_is_not_needed_takes_no_turn(clock: Clock, pacer: RetryPacer) -> None:
    """Tries that are not needed any more return at once, and do not delay the others."""
    assert pass_all(clock, pacer, 50, needed=False) == []
    assert clock.now == 0.0
