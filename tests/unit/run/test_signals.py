"""Signals and other stops: which ones end a run, and how they are held off."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from prefect.exceptions import TerminationSignal

from tests.conftest import RUN_ID, Write
from torchyard.loading.profile import load_profile
from torchyard.model.run import RunEnd
from torchyard.run.runner import Runner
from torchyard.run.signals import (
    STOP_EXCEPTIONS,
    CancelRequested,
    SignalHold,
    describe_stop,
    find_hidden_stop,
    protect_run,
)
from torchyard.tasks.flow_run.reporter import PrefectReporter


def test_stop_that_prefect_stumbles_over_is_a_stop(write: Write) -> None:
    """SIGTERM at the start of a task becomes an error in Prefect's engine, but the run still ends as stopped."""
    line = Runner(load_profile(str(write())), RUN_ID, PrefectReporter(RUN_ID))
    line.may_run = True

    def work() -> RunEnd:
        try:
            raise TerminationSignal(signal.SIGTERM)
        except TerminationSignal:
            raise ValueError("Task run is not set")  # noqa: B904 - as Prefect does it

    with SignalHold() as signals:
        assert protect_run(line, work, signals) == ("stopped", "stopped by SIGTERM")


@pytest.fixture
def caught() -> Iterator[list[int]]:
    """The SIGTERMs and SIGINTs that this process has got, which end nothing."""
    got: list[int] = []
    old_handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in old_handlers:
        signal.signal(number, lambda number, _: got.append(number))
    yield got
    for number, handler in old_handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_held_off_from_the_begin_to_the_end(caught: list[int], number: int) -> None:
    """While something must finish, a signal is ignored; before and after that, it arrives as always."""
    with SignalHold() as hold:
        os.kill(os.getpid(), number)
        assert caught == [number]
        hold.ignore_signals()
        os.kill(os.getpid(), number)
    assert caught == [number]
    os.kill(os.getpid(), number)
    assert caught == [number, number]


def fail_after(stop: BaseException, *, is_named: bool) -> ValueError:
    """An error that came of a stop, which it names as its cause or not."""
    try:
        try:
            raise stop
        except BaseException as first:
            raise ValueError("no task run") from (first if is_named else None)
    except ValueError as error:
        return error


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("stop", [KeyboardInterrupt(), asyncio.CancelledError(), CancelRequested()])
def test_stop_is_found_behind_an_error(stop: BaseException, is_named: bool) -> None:
    """A stop that made another piece of code fail is found, whether that code named it or not."""
    assert find_hidden_stop(fail_after(stop, is_named=is_named), STOP_EXCEPTIONS) is stop


def test_error_without_a_stop_hides_none() -> None:
    """An error that came of another error is a fault, and no stop."""
    assert find_hidden_stop(fail_after(KeyError("x"), is_named=True), STOP_EXCEPTIONS) is None


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (KeyboardInterrupt(), "Ctrl-C"),
        (asyncio.CancelledError(), "the flow's timeout"),
        (TerminationSignal(signal.SIGTERM), "SIGTERM"),
    ],
)
def test_stop_is_named_as_its_sender_knows_it(stop: BaseException, text: str) -> None:
    """The report says `stopped by Ctrl-C`, and not the name of an exception."""
    assert describe_stop(stop) == text
