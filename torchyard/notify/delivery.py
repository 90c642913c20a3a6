"""Send a message to every address, each on a separate thread: a receiver that hangs does not delay the run."""

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
from torchyard.notify.targets import AddressError, create_receiver, describe_address, resolve_address

_MAX_REASON_CHARS = 200
# In a chat, a line that a program has printed must not notify everyone.
_MENTION = re.compile(r"(?<=[@!])(?=everyone|here|channel|all)")
Tone = Literal["info", "success", "warning", "failure"]  # apprise's names


class Message(NamedTuple):
    """The text that a receiver gets."""

    title: str
    body: str
    tone: Tone


class Delivery:
    """Send the messages of one run, and collect those that did not arrive.

    `send` starts a daemon thread for each address and returns; `finish` waits for all of them. `on_arrival` runs on the
    thread that sent the message. Addresses are given by their index, because they contain secrets.
    """

    def __init__(self, addresses: Sequence[str], environ: Mapping[str, str]) -> None:
        self._addresses = addresses
        self._environ = environ
        self._sending: dict[threading.Thread, str] = {}
        self._failed: list[str] = []

    def send(self, message: Message, indices: Sequence[int], on_arrival: Callable[[int], object]) -> None:
        """Start to send a message to the addresses at these indices, and return immediately."""
        for index in indices:
            run_in_context = contextvars.copy_context().run  # the run's log belongs to a context
            thread = threading.Thread(
                target=run_in_context, args=(self._deliver, message, index, on_arrival), daemon=True, name="notify"
            )
            self._sending[thread] = f"{describe_address(self._addresses[index])} has not got {message.title!r}"
            thread.start()

    def finish(self, timeout_s: float) -> tuple[str, ...]:
        """Wait for the messages that are being sent. Returns one sentence for each that did not arrive."""
        deadline = time.monotonic() + timeout_s
        for thread in self._sending:
            thread.join(max(deadline - time.monotonic(), 0))
        unsent: list[str] = []
        for thread, description in self._sending.items():
            if thread.is_alive():
                unsent.append(f"{description}: no answer for {timeout_s:.0f} s")
        for description in unsent:
            get_log().warning("notify: %s", description)
        return (*self._failed, *unsent)

    def _deliver(self, message: Message, index: int, on_arrival: Callable[[int], object]) -> None:
        address = self._addresses[index]
        try:
            reason = _send_message(resolve_address(address, self._environ), message)
        except AddressError as error:
            reason = str(error)
        except Exception as error:  # a plugin of apprise may raise any error
            reason = f"{type(error).__name__}: {error}"
        if reason is None:
            on_arrival(index)
            return
        description = f"{describe_address(address)} has not got {message.title!r}: {_shorten_reason(reason)}"
        self._failed.append(description)
        get_log().warning("notify: %s", description)


def _send_message(address: str, message: Message) -> str | None:
    """Send a message. Returns None, or the reason why it did not arrive, in apprise's words."""
    import apprise

    sender = apprise.Apprise()
    sender.add(create_receiver(address))
    thread_log = _ThreadLog()
    log = logging.getLogger("apprise")
    log.addHandler(thread_log)
    body = _MENTION.sub(" ", message.body)
    try:
        is_sent = sender.notify(
            body, message.title, apprise.NotifyType(message.tone), body_format=apprise.NotifyFormat.TEXT
        )
    finally:
        log.removeHandler(thread_log)
    return None if is_sent else thread_log.last_message or "refused"


def _shorten_reason(reason: str) -> str:
    return single_line(mask_text(reason), _MAX_REASON_CHARS)


class _ThreadLog(logging.Handler):
    """A log handler that keeps the last message of the thread that created it; "" if there is none."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last_message = ""
        self._thread_id = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread_id:
            self.last_message = record.getMessage()
