"""Sends a message to every address, each on a thread of its own: a receiver that hangs delays nothing."""

import contextvars
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from torchyard.common.escaping import single_line
from torchyard.common.log import get_log
from torchyard.common.secrets import mask_text
from torchyard.notify.targets import AddressError, describe_address, make_receiver, resolve_address

_MAX_REASON_CHARS = 200
# In a chat, a line that a program has printed must not call everyone.
_MENTION = re.compile(r"(?<=[@!])(?=everyone|here|channel|all)")
Tone = Literal["info", "success", "warning", "failure"]  # as apprise names them


class Message(NamedTuple):
    """What a receiver gets."""

    title: str
    body: str
    tone: Tone


class Delivery:
    """The messages of one run, and which of them did not arrive.

    `arrived` is called with the place of each address that got its message, on the thread that has sent it.
    """

    def __init__(self, addresses: Sequence[str], environ: Mapping[str, str]) -> None:
        self._addresses, self._environ = addresses, environ
        self._sending: dict[threading.Thread, str] = {}
        self._failed: list[str] = []

    def send(self, message: Message, to: Sequence[int], arrived: Callable[[int], object]) -> None:
        """Start to send a message to the addresses at these places, and return at once."""
        for place in to:
            run = contextvars.copy_context().run  # the run's log belongs to a context
            words = (message, place, arrived)
            thread = threading.Thread(target=run, args=(self._deliver, *words), daemon=True, name="notify")
            self._sending[thread] = f"{describe_address(self._addresses[place])} has not got {message.title!r}"
            thread.start()

    def finish(self, timeout_s: float) -> tuple[str, ...]:
        """Wait for what is being sent; returns what did not arrive and why, each as a sentence."""
        until = time.monotonic() + timeout_s
        for thread in self._sending:
            thread.join(max(until - time.monotonic(), 0))
        late = [
            f"{said}: no answer for {timeout_s:.0f} s" for thread, said in self._sending.items() if thread.is_alive()
        ]
        for said in late:
            get_log().warning("notify: %s", said)
        return (*self._failed, *late)

    def _deliver(self, message: Message, place: int, arrived: Callable[[int], object]) -> None:
        address = self._addresses[place]
        try:
            why = _send_message(resolve_address(address, self._environ), message)
        except AddressError as error:
            why = str(error)
        except Exception as error:  # a plugin's own fault
            why = f"{type(error).__name__}: {error}"
        if not why:
            arrived(place)
            return
        said = f"{describe_address(address)} has not got {message.title!r}: {_shorten_reason(why)}"
        self._failed.append(said)
        get_log().warning("notify: %s", said)


def _send_message(address: str, message: Message) -> str:
    """Send a message; returns why it did not arrive, as apprise says it."""
    import apprise

    sender, heard = apprise.Apprise(), _ThreadLog()
    sender.add(make_receiver(address))
    log = logging.getLogger("apprise")
    log.addHandler(heard)
    body = _MENTION.sub(" ", message.body)
    try:
        sent = sender.notify(
            body, message.title, apprise.NotifyType(message.tone), body_format=apprise.NotifyFormat.TEXT
        )
    finally:
        log.removeHandler(heard)
    return "" if sent else heard.last or "refused"


def _shorten_reason(why: str) -> str:
    return single_line(mask_text(why), _MAX_REASON_CHARS)


class _ThreadLog(logging.Handler):
    """Keeps the last thing that this thread has logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last, self._thread = "", threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self.last = record.getMessage()
