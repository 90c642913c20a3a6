"""Messages about a run's end that a receiver did not take: they wait in the run's folder for the next sweep."""

import os
import time
from pathlib import Path
from typing import NamedTuple

from pydantic import ConfigDict, TypeAdapter

from torchyard.common.log import get_log
from torchyard.common.outbox import DeliveryError
from torchyard.notify.delivery import Message, send_message
from torchyard.notify.targets import describe_address
from torchyard.run import journal
from torchyard.run.late_items import LateItems

_SENT_FILE = "messages"  # of a run's folder: the messages that were sent
_MAX_AGE_S = 24 * 3600.0  # a later message is of no use, and the report lists it as unsent


class KeyedMessage(NamedTuple):
    """A message to one address of a run.

    key: what the message is about, for the next processes of the run.
    place: the index of the address in the profile.
    address: as the profile names it, possibly by a variable.
    created_at: in seconds since the epoch.
    """

    key: str
    place: int
    address: str
    message: Message
    created_at: float


_MESSAGES = TypeAdapter(list[KeyedMessage], config=ConfigDict(defer_build=True))  # few processes need it
LATE_MESSAGES = LateItems("late-messages.json", _MESSAGES, "messages")


def list_sent(folder: Path, key: str) -> set[int]:
    """The indices of the addresses to which a message was sent. OSError if that cannot be read."""
    events = journal.read_events(folder / _SENT_FILE)
    return {event.get("place", -1) for event in events if event["event"] == "sent" and event.get("key") == key}


def send_keyed_message(folder: Path, item: KeyedMessage) -> None:
    """Send a message, and record in the run's folder that it was sent. DeliveryError if it did not arrive."""
    send_message(item.address, item.message, os.environ)
    try:
        journal.append_event(folder / _SENT_FILE, "sent", {"key": item.key, "place": item.place})
    except OSError as error:
        get_log().warning("notify: cannot record that a message was sent, so it may be sent again: %s", error)


def send_late_messages() -> None:
    """Send what the runs of this machine have kept. Nothing is raised: what still does not arrive is kept for a day.

    An address that fails is not tried again in this call, so that a receiver that hangs costs one timeout.
    """
    failed_addresses: set[str] = set()
    for folder in LATE_MESSAGES.list_folders():
        items = LATE_MESSAGES.read(folder)
        if items is not None:
            LATE_MESSAGES.keep(folder, [item for item in items if not _send_late(folder, item, failed_addresses)])


def _send_late(folder: Path, item: KeyedMessage, failed_addresses: set[str]) -> bool:
    """Send a kept message; whether it is done with: sent now or by another process, or too old."""
    if time.time() - item.created_at > _MAX_AGE_S:
        return True
    if item.address in failed_addresses:
        return False
    try:
        if item.place not in list_sent(folder, item.key):
            send_keyed_message(folder, item)
            get_log().info("notify: %s has got %r now", describe_address(item.address), item.message.title)
    except (DeliveryError, OSError) as error:
        get_log().debug("notify: %s: %s", describe_address(item.address), error)
        failed_addresses.add(item.address)
        return False
    return True
