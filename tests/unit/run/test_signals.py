"""Signals and other stops: which ones end a run, and when they are ignored."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator

import pytest
from prefect.exceptions import TerminationSignal
from prefect.utilities.engine import can_ack_control_intent, capture_sigterm

from tests.conftest import RUN_ID, Write
from torchyard.assembly import create_runner
from torchyard.loading.profile import load_profile
from torchyard.model.errors import DetachedError
from torchyard.model.run import RunEnd
from torchyard.run.control import LocalControl, Terminated
from torchyard.run.signals import (
    STOP_EXCEPTIONS,
    CancelRequested,
    SignalHold,
    describe_stop,
    find_hidden_stop,
    protect_run,
)
from torchyard.tasks.flow_run.control import PrefectControl


def test_stop_that_breaks_prefects_engine_is_a_stop(write: Write) -> None:
    """SIGTERM at the start of a task becomes an error in Prefect's engine, but the run still ends as stopped."""
    runner = create_runner(load_profile(str(write())), RUN_ID, PrefectControl(RUN_ID))
    runner.may_run = True

    def start_task() -> RunEnd:
        try:
            raise TerminationSignal(signal.SIGTERM)
        except TerminationSignal:
            raise ValueError("Task run is not set")  # noqa: B904 - as Prefect does it

    with SignalHold() as signals:
        assert protect_run(runner, start_task, signals) == RunEnd("stopped", "stopped by SIGTERM")


def test_stop_that_compiled_code_reports_as_its_own_error_is_a_stop(write: Write) -> None:
    """SIGTERM while pydantic builds a model arrives as a SchemaError without a cause, and the run ends as stopped."""
    control = LocalControl()
    runner = create_runner(load_profile(str(write())), RUN_ID, control)
    runner.may_run = True

    def build_model() -> RunEnd:
        with contextlib.suppress(Terminated):
            os.kill(os.getpid(), signal.SIGTERM)
        raise ValueError("Error building `literal` serializer: Terminated")

    with control, SignalHold() as signals:
        assert protect_run(runner, build_model, signals) == RunEnd("stopped", "stopped by SIGTERM")


def test_error_after_a_spurious_stop_is_an_error(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that does not end the run does not explain a later error either: the job keeps running."""
    control = LocalControl()
    monkeypatch.setattr(control, "is_spurious_stop", lambda _: True)
    runner = create_runner(load_profile(str(write())), RUN_ID, control)
    runner.may_run = True
    calls: list[int] = []

    def fail_later() -> RunEnd:
        calls.append(1)
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        raise ValueError("a defect")

    with control, SignalHold() as signals, pytest.raises(DetachedError, match="a defect"):
        protect_run(runner, fail_later, signals)
    assert len(calls) == 2


def test_handlers_stay_in_place_until_a_run_ends() -> None:
    """Prefect hands a run over only if its own handler is installed: `is` compares it."""
    with capture_sigterm():
        handler = signal.getsignal(signal.SIGTERM)
        with SignalHold() as signals:
            assert signal.getsignal(signal.SIGTERM) is handler
            assert can_ack_control_intent()
            signals.ignore_signals()
        assert signal.getsignal(signal.SIGTERM) is handler


@pytest.fixture
def caught() -> Iterator[list[int]]:
    """The numbers of the SIGTERMs and SIGINTs that this process has received; they have no other effect."""
    received: list[int] = []
    old_handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in old_handlers:
        signal.signal(number, lambda number, _: received.append(number))
    yield received
    for number, handler in old_handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_ignored_from_ignore_signals_to_the_end(caught: list[int], number: int) -> None:
    """A signal is ignored between `ignore_signals` and the end of the block, and handled before and after."""
    with SignalHold() as hold:
        os.kill(os.getpid(), number)
        assert caught == [number]
        hold.ignore_signals()
        os.kill(os.getpid(), number)
    assert caught == [number]
    os.kill(os.getpid(), number)
    assert caught == [number, number]


def fail_after(stop: BaseException, *, is_named: bool) -> ValueError:
    """An error that a stop has caused; the stop is its `__cause__` if `is_named`, else its `__context__`."""
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
    """A stop is found as the cause and as the context of an error."""
    assert find_hidden_stop(fail_after(stop, is_named=is_named), STOP_EXCEPTIONS) is stop


def test_error_without_a_stop_hides_none() -> None:
    """An error that another error has caused is not a stop."""
    assert find_hidden_stop(fail_after(KeyError("x"), is_named=True), STOP_EXCEPTIONS) is None


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (KeyboardInterrupt(), "Ctrl-C"),
        (asyncio.CancelledError(), "the flow's timeout"),
        (TerminationSignal(signal.SIGTERM), "SIGTERM"),
    ],
)
def test_stop_is_described_by_its_sender(stop: BaseException, text: str) -> None:
    """The report contains `stopped by Ctrl-C`, and not the name of an exception."""
    assert describe_stop(stop) == text
