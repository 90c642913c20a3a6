"""Sends items to a receiver on a separate thread: one that fails or hangs delays neither the run nor others."""

import contextvars
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Generic, NamedTuple, Self, TypeVar

from torchyard.common.escaping import single_line
from torchyard.common.log import get_log
from torchyard.common.secrets import mask_text

T = TypeVar("T")
_MAX_REASON_CHARS = 300
_MIN_SHARE_S = 1.0  # of a shared timeout


class RefusedError(Exception):
    """The receiver will not take these items, however often they are sent; the cause is the receiver's error."""


class DeliveryError(Exception):
    """A delivery failed, and the text is the whole reason: it is shown without the name of this class."""


class OutboxSettings(NamedTuple):
    """How an outbox sends; times in seconds.

    collect_s: items are collected for this long after a delivery; 0: each is sent as soon as it is put.
    retry_s: after a failure, until the next try.
    last_retry_s: the same once the outbox is being finished; None: what has failed then is not tried again.
    tick_s: how often `on_tick` is called.
    max_batch: how many items are delivered at once.
    in_order: whether all items wait for one that fails.
    is_quiet: whether failures are not logged.
    """

    collect_s: float = 0.0
    retry_s: float = 1.0
    last_retry_s: float | None = 1.0
    tick_s: float | None = None
    max_batch: int = 1
    in_order: bool = True
    is_quiet: bool = False


_DEFAULT_SETTINGS = OutboxSettings()


class _Entry(NamedTuple, Generic[T]):
    """An item that waits, and the future of its delivery."""

    item: T
    future: Future[None]


class Undelivered(NamedTuple, Generic[T]):
    """What an outbox could not deliver, and why.

    items: those that were put but not delivered, in order.
    reason: the last error of the receiver, or that it did not answer in time.
    """

    items: tuple[T, ...]
    reason: str


class Outbox(Generic[T]):
    """Deliver items to one receiver, on a daemon thread of its own, from `start` on.

    deliver  called on the thread with the oldest items, at most
    `OutboxSettings.max_batch` of them:

        returns a number       so many of the items, from the first on, leave the outbox; their futures are done
        raises RefusedError    all of the items leave the outbox; their futures contain its cause
        raises anything else   the items stay and are delivered again after `retry_s`

    Order. Items are delivered in the order in which they were put, except that an item with a key replaces the waiting
    one of this key, whose future is then never completed.

    Threads. All methods may be called by any thread, and only `finish` waits. `_condition` guards the shared state.
    The thread ends when everything is delivered after `finish`, or at `stop`. `close`, if given, is called by it last.

    Errors. The first of several failures is a warning, and the first success after it a message, unless `is_quiet`.
    """

    def __init__(
        self,
        name: str,
        deliver: Callable[[Sequence[T]], int],
        settings: OutboxSettings = _DEFAULT_SETTINGS,
        *,
        on_tick: Callable[[], object] | None = None,
        close: Callable[[], object] | None = None,
    ) -> None:
        """`name`: of the receiver, as the log shows it."""
        self._name = name
        self._deliver = deliver
        self._settings = settings
        self._on_tick = on_tick
        self._close = close
        self._condition = threading.Condition()
        self._waiting: dict[Hashable, _Entry[T]] = {}
        self._error: str | None = None  # of the last delivery; None if it succeeded
        self._is_awake = False  # whether the thread has a reason not to wait
        self._is_finishing = False
        self._is_stopped = False
        self._thread: threading.Thread | None = None  # until it is started

    def start(self) -> Self:
        """Start the thread. Items that were put before wait for it."""
        run_in_context = contextvars.copy_context().run  # the run's log belongs to a context
        self._thread = threading.Thread(target=run_in_context, args=(self._run,), daemon=True, name=self._name)
        self._thread.start()
        return self

    def put(self, item: T, key: Hashable | None = None) -> Future[None]:
        """Queue an item, in place of the waiting one with this key; return the future of its delivery."""
        entry = _Entry(item, Future[None]())
        with self._condition:
            self._waiting[object() if key is None else key] = entry
            if not self._settings.collect_s:
                self._wake()
        return entry.future

    def count_waiting(self) -> int:
        """How many items wait, those that are being delivered included."""
        with self._condition:
            return len(self._waiting)

    def discard(self, key: Hashable) -> None:
        """Remove the waiting item with this key, if there is one."""
        with self._condition:
            self._waiting.pop(key, None)

    def finish(self, timeout_s: float) -> Undelivered[T] | None:
        """Deliver what waits, for at most `timeout_s`, and end the thread; None if everything was delivered."""
        with self._condition:
            self._is_finishing = True
            self._wake()
        self._join(timeout_s)
        self.stop()
        with self._condition:
            items = tuple(entry.item for entry in self._waiting.values())
        return Undelivered(items, self._error or f"no answer for {timeout_s:.0f} s") if items else None

    def stop(self, timeout_s: float = 0.0) -> None:
        """Deliver nothing more; wait at most `timeout_s` for the delivery that is being made."""
        with self._condition:
            self._is_stopped = True
            self._wake()
        self._join(timeout_s)

    def _join(self, timeout_s: float) -> None:
        if self._thread:
            self._thread.join(timeout_s)

    def _wake(self) -> None:
        self._is_awake = True
        self._condition.notify()

    # --- on the outbox's own thread

    def _run(self) -> None:
        next_tick_at = time.monotonic()
        while not self._is_stopped:
            now = time.monotonic()
            if self._on_tick and self._settings.tick_s and now >= next_tick_at and not self._is_finishing:
                next_tick_at = now + self._settings.tick_s
                self._on_tick()
            is_last_try = self._is_finishing and self._settings.last_retry_s is None
            has_failed = self._deliver_all()
            with self._condition:
                if is_last_try or (self._is_finishing and not self._waiting):
                    break
                self._condition.wait_for(lambda: self._is_awake, self._choose_pause(has_failed=has_failed))
                self._is_awake = False
        if self._close:
            self._close()

    def _choose_pause(self, *, has_failed: bool) -> float | None:
        """Seconds until the next pass; None: until an item is put."""
        if has_failed:
            return self._settings.last_retry_s if self._is_finishing else self._settings.retry_s
        if self._is_finishing:
            return 0.0
        return self._settings.collect_s or self._settings.tick_s

    def _deliver_all(self) -> bool:
        """Deliver what waits, one batch after the other; return whether a delivery has failed."""
        has_failed = False
        skipped: set[Hashable] = set()
        while not self._is_stopped:
            with self._condition:
                keys = [key for key in self._waiting if key not in skipped][: self._settings.max_batch]
                batch = {key: self._waiting[key] for key in keys}
            if not batch:
                break
            if not self._deliver_batch(batch):
                has_failed = True
                skipped.update(keys)
                if self._settings.in_order:
                    break
        return has_failed

    def _deliver_batch(self, batch: dict[Hashable, _Entry[T]]) -> bool:
        """Deliver some items; return False if they must be delivered again."""
        refusal: BaseException | None = None
        try:
            count = self._deliver([entry.item for entry in batch.values()])
        except RefusedError as error:
            count = len(batch)
            refusal = error.__cause__ or error
        except Exception as error:  # every receiver raises its own errors, and no job depends on them
            self._report(error)
            return False
        for key, entry in list(batch.items())[:count]:
            with self._condition:
                if self._waiting.get(key) is entry:  # not if a newer item has replaced it meanwhile
                    del self._waiting[key]
            if refusal:
                entry.future.set_exception(refusal)
            else:
                entry.future.set_result(None)
        if self._error and not self._settings.is_quiet:
            get_log().info("%s works again", self._name)
        self._error = None
        return True

    def _report(self, error: Exception) -> None:
        text = str(error) if isinstance(error, DeliveryError) else f"{type(error).__name__}: {error}"
        message = single_line(mask_text(text), _MAX_REASON_CHARS)
        if not self._error and not self._settings.is_quiet:
            get_log().warning("%s: %s (retrying; the job is not affected)", self._name, message)
        self._error = message


def share_timeout(receivers: Iterable[T], timeout_s: float) -> Iterator[tuple[T, float]]:
    """Each receiver with the seconds that remain for it, at least one, even if the others have used up the time."""
    deadline = time.monotonic() + timeout_s
    min_share_s = min(_MIN_SHARE_S, timeout_s)
    for receiver in receivers:
        yield receiver, max(deadline - time.monotonic(), min_share_s)
