"""Sends a message to one address."""

import logging
import re
import threading
from collections.abc import Mapping
from typing import Literal, NamedTuple

from torchyard.common.escaping import single_line
from torchyard.common.outbox import DeliveryError
from torchyard.common.secrets import mask_text
from torchyard.notify.targets import AddressError, create_receiver, resolve_address

_MAX_REASON_CHARS = 200
# In a chat, a line that a program has printed must not notify everyone.
_MENTION = re.compile(r"(?<=[@!])(?=everyone|here|channel|all)")
Tone = Literal["info", "success", "warning", "failure"]  # apprise's names


class Message(NamedTuple):
    """The text that a receiver gets."""

    title: str
    body: str
    tone: Tone


def send_message(address: str, message: Message, environ: Mapping[str, str]) -> None:
    """Send a message to an address, which may name a variable. DeliveryError if it did not arrive."""
    try:
        reason = _send(resolve_address(address, environ), message)
    except AddressError as error:
        reason = str(error)
    except Exception as error:  # a plugin of apprise may raise any error
        reason = f"{type(error).__name__}: {error}"
    if reason is not None:
        raise DeliveryError(single_line(mask_text(reason), _MAX_REASON_CHARS))


def _send(address: str, message: Message) -> str | None:
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


class _ThreadLog(logging.Handler):
    """A log handler that keeps the last message of the thread that created it; "" if there is none."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last_message = ""
        self._thread_id = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread_id:
            self.last_message = record.getMessage()
