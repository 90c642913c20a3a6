"""An outbox delivers in order, repeats what fails, and ends in bounded time with what it could not deliver."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.support.waiting import wait_until
from torchyard.common.outbox import DeliveryError, Outbox, OutboxSettings, RefusedError, share_timeout

FAST = OutboxSettings(retry_s=0.01, last_retry_s=0.01)


class FakeReceiver:
    """Keeps the batches that it gets; `on_call` is called first with the batch, and may raise or hang."""

    def __init__(self, on_call: Callable[[list[int]], object] = lambda batch: None) -> None:
        self.batches: list[list[int]] = []
        self._on_call = on_call

    def deliver(self, items: Sequence[int]) -> int:
        batch = list(items)
        self._on_call(batch)
        self.batches.append(batch)
        return len(batch)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that a receiver waits for; set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def test_items_arrive_in_order_and_their_futures_are_done() -> None:
    """What is put arrives one by one in order, and each future is done once its item was delivered."""
    receiver = FakeReceiver()
    outbox = Outbox("receiver", receiver.deliver, FAST).start()
    futures = [outbox.put(number) for number in range(5)]
    for future in futures:
        future.result(10)
    assert outbox.finish(10) is None
    assert receiver.batches == [[0], [1], [2], [3], [4]]


def test_items_are_collected_into_batches(gate: threading.Event) -> None:
    """Items that wait together are delivered together, up to the size of a batch."""
    receiver = FakeReceiver(lambda batch: gate.wait(10))
    outbox = Outbox("receiver", receiver.deliver, FAST._replace(max_batch=3)).start()
    outbox.put(0)
    wait_until(lambda: outbox.count_waiting() == 1)
    for number in range(1, 6):
        outbox.put(number)
    gate.set()
    assert outbox.finish(10) is None
    assert [item for batch in receiver.batches for item in batch] == [0, 1, 2, 3, 4, 5]
    assert max(map(len, receiver.batches)) == 3


def test_receiver_that_takes_a_part_gets_the_rest_again() -> None:
    """Of a batch only as many items leave the outbox as the receiver has taken."""
    taken: list[int] = []

    def take_first(items: Sequence[int]) -> int:
        taken.append(items[0])
        return 1

    outbox = Outbox("receiver", take_first, FAST._replace(max_batch=10)).start()
    for number in range(4):
        outbox.put(number)
    assert outbox.finish(10) is None
    assert taken == [0, 1, 2, 3]


def test_newer_item_replaces_the_waiting_one_of_its_key(gate: threading.Event) -> None:
    """While a receiver hangs, only the newest item of a key waits, and one that is in flight does not remove it."""
    receiver = FakeReceiver(lambda batch: gate.wait(10))
    outbox = Outbox("receiver", receiver.deliver, FAST).start()
    outbox.put(0, "bar")
    for number in range(1, 100):
        outbox.put(number, "bar")
    assert outbox.count_waiting() == 1
    gate.set()
    assert outbox.finish(10) is None
    assert receiver.batches[-1] == [99]
    assert len(receiver.batches) <= 2


def test_failure_is_repeated_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Items of a receiver that fails arrive later in order; the log has its first failure and its recovery."""
    caplog.set_level("INFO")
    errors = iter([ConnectionError("no route"), ConnectionError("no route"), None])

    def fail(batch: list[int]) -> None:
        error = next(errors, None)
        if error:
            raise error

    receiver = FakeReceiver(fail)
    outbox = Outbox("receiver", receiver.deliver, FAST).start()
    outbox.put(1)
    outbox.put(2).result(10)
    assert receiver.batches == [[1], [2]]
    assert caplog.messages == [
        "receiver: ConnectionError: no route (retrying; the job is not affected)",
        "receiver works again",
    ]


def test_refused_item_is_dropped() -> None:
    """A refused item leaves the outbox with the receiver's error, and the next one is delivered."""

    def refuse(batch: list[int]) -> None:
        if batch == [1]:
            raise RefusedError from ValueError("too long")

    receiver = FakeReceiver(refuse)
    outbox = Outbox("receiver", receiver.deliver, FAST).start()
    refused = outbox.put(1)
    outbox.put(2).result(10)
    with pytest.raises(ValueError, match="too long"):
        refused.result(0)
    assert outbox.finish(10) is None


def test_others_do_not_wait_for_one_that_fails_unless_in_order() -> None:
    """Without an order the others are delivered although one fails; in order they wait for it."""

    def fail(batch: list[int]) -> None:
        if batch == [1]:
            raise DeliveryError("down")

    for in_order, expected in ((False, (1,)), (True, (1, 2))):
        outbox = Outbox("receiver", FakeReceiver(fail).deliver, FAST._replace(in_order=in_order)).start()
        outbox.put(1)
        outbox.put(2)
        undelivered = outbox.finish(0.2)
        assert undelivered
        assert (undelivered.items, undelivered.reason) == (expected, "down")


def test_receiver_that_hangs_delays_the_end_by_the_timeout(gate: threading.Event) -> None:
    """The end waits for a receiver without a response as long as its timeout, and names what is missing."""
    outbox = Outbox("receiver", FakeReceiver(lambda batch: gate.wait(60)).deliver, FAST).start()
    outbox.put(1)
    assert outbox.finish(0.1) == ((1,), "no answer for 0 s")


def test_last_try_begins_after_the_end_is_requested() -> None:
    """Without retries at the end, what has failed before is tried exactly once more."""
    calls: list[list[int]] = []

    def fail(batch: list[int]) -> None:
        calls.append(batch)
        raise DeliveryError("refused")

    outbox = Outbox("receiver", FakeReceiver(fail).deliver, OutboxSettings(retry_s=60.0, last_retry_s=None)).start()
    outbox.put(1)
    wait_until(lambda: calls)
    assert outbox.finish(10) == ((1,), "refused")
    assert len(calls) == 2


def test_tick_is_called_regularly_until_the_end() -> None:
    """`on_tick` is called although nothing is put, and the thread calls `close` last."""
    ticks: list[float] = []
    closed = threading.Event()
    outbox = Outbox(
        "receiver",
        FakeReceiver().deliver,
        OutboxSettings(tick_s=0.01),
        on_tick=lambda: ticks.append(time.monotonic()),
        close=closed.set,
    ).start()
    wait_until(lambda: len(ticks) > 2)
    assert not closed.is_set()
    assert outbox.finish(10) is None
    assert closed.is_set()


def test_discarded_item_is_not_delivered(gate: threading.Event) -> None:
    """An item that was discarded while it waited is neither delivered nor missing."""
    receiver = FakeReceiver(lambda batch: gate.wait(10))
    outbox = Outbox("receiver", receiver.deliver, FAST).start()
    outbox.put(1)
    outbox.put(2, "late")
    outbox.discard("late")
    gate.set()
    assert outbox.finish(10) is None
    assert receiver.batches == [[1]]


def test_receivers_share_a_timeout() -> None:
    """Each receiver gets what the others have left of the timeout, but at least a second or the whole timeout."""
    remaining_s = dict(share_timeout("ab", 60.0))
    assert 59.0 < remaining_s["b"] <= remaining_s["a"] <= 60.0
    assert dict(share_timeout("ab", 1.0)) == {"a": 1.0, "b": 1.0}
    assert dict(share_timeout("ab", 0.1)) == {"a": 0.1, "b": 0.1}
