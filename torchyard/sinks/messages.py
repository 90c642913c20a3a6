"""The messages of a run (`notify`): its job waits for long, a rank hangs, a loss is nan, and how the run ended."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from torchyard.common.log import get_log
from torchyard.common.outbox import Outbox, OutboxSettings
from torchyard.model.errors import FolderError
from torchyard.model.event import AttemptStarted, BadLossRead, EndReached, RunEvent, StatusRead
from torchyard.model.finding import Finding
from torchyard.model.hang import HangUpdate
from torchyard.model.observe import Notify
from torchyard.model.observe import RunEvent as NotifyEvent
from torchyard.model.profile import Profile
from torchyard.model.run import Report
from torchyard.notify.delivery import Message, send_message
from torchyard.notify.message import (
    list_end_events,
    write_bad_loss_message,
    write_end_message,
    write_hang_message,
    write_waiting_message,
)
from torchyard.notify.targets import check_addresses, describe_address, remember_addresses
from torchyard.run import journal
from torchyard.run.folder import RunFolder
from torchyard.run.services import Sink
from torchyard.trend.records import read_history

_SENT_MESSAGES = "messages"  # the file of a run that lists the messages that were sent
# Retried while the run goes on, and once more at its end, which a receiver that refuses must not delay.
_SETTINGS = OutboxSettings(retry_s=30.0, last_retry_s=None)


class _KeyedMessage(NamedTuple):
    """A message, and the key by which later processes of the run find out that it was sent."""

    key: str
    message: Message


class MessageSink(Sink):
    """Send the messages that `notify` enables to each of its addresses.

    Each message is sent once per address: the file `messages` of the run's folder records what was sent, so that the
    next process of the run does not repeat it. Each address has an outbox, because one that hangs must not delay the
    others; a failure is retried while the run goes on, and reported at its end.
    """

    purpose = "send messages"

    def __init__(self, profile: Profile, notify: Notify, folder: RunFolder, link: str = "") -> None:
        """`link`: the run's address in the orchestrator; empty if it has none."""
        self._profile = profile
        self._notify = notify
        self._folder = folder
        self._link = link
        self._attempt = 0
        self._has_started = False
        self._queued_keys: set[str] = set()
        self._outboxes: dict[int, Outbox[_KeyedMessage]] = {}  # by the index of the address
        remember_addresses(notify, os.environ)

    def check(self) -> Iterator[Finding]:
        return check_addresses(self._notify, os.environ)

    def take(self, event: RunEvent) -> None:
        match event:
            case AttemptStarted():
                self._attempt = event.number
                self._has_started = False
            case StatusRead():
                self._take_status(event)
            case HangUpdate():
                if event.hang and event.is_certain:
                    message = write_hang_message(self._profile, self._folder.name, event.hang, self._link)
                    self._send_once("hanging", f"hanging {self._attempt}", message)
            case BadLossRead():
                message = write_bad_loss_message(self._profile, self._folder.name, event.bad_loss, self._link)
                self._send_once("bad-loss", f"bad-loss {self._attempt}", message)
            case EndReached():
                self._send_end(event.report)
            case _:
                pass

    def _take_status(self, event: StatusRead) -> None:
        """Send a message if the job has waited for `notify.waiting`. A node that is lost later is not a wait."""
        if event.status.state == "running":
            self._has_started = True
        is_waiting = event.status.state == "pending" and not self._has_started
        if is_waiting and event.waited_s >= self._notify.waiting:
            message = write_waiting_message(
                self._profile, self._folder.name, event.waited_s, event.status.reason, self._link
            )
            self._send_once("waiting", f"waiting {self._attempt}", message)

    def _send_end(self, report: Report) -> None:
        earlier_ends = _list_earlier_ends(report)
        for event in list_end_events(report, earlier_ends):
            if event in self._notify.events:  # the first one: an end is reported by one message
                key = f"end {report.run} {report.end} {_count_launches(self._folder)}"
                self._send_once(event, key, write_end_message(event, report, earlier_ends, self._link))
                return

    def finish(self, timeout_s: float) -> list[str]:
        losses: list[str] = []
        outboxes = self._outboxes
        self._outboxes = {}
        for index, outbox in outboxes.items():
            undelivered = outbox.finish(timeout_s)
            if undelivered is None:
                continue
            for item in undelivered.items:
                title = item.message.title
                loss = f"{describe_address(self._notify.to[index])} has not got {title!r}: {undelivered.reason}"
                get_log().warning("notify: %s", loss)
                losses.append(loss)
        return losses

    def _send_once(self, event: NotifyEvent, key: str, message: Message) -> None:
        """Send a message to each address that has not received it from this or an earlier process of the run."""
        if event not in self._notify.events or key in self._queued_keys:
            return
        self._queued_keys.add(key)
        sent_indices = set(self._read_sent(key))
        for index in range(len(self._notify.to)):
            if index not in sent_indices:
                self._open_outbox(index).put(_KeyedMessage(key, message))

    def _open_outbox(self, index: int) -> Outbox[_KeyedMessage]:
        """The outbox of an address, which is started with its first message."""
        if index not in self._outboxes:
            address = self._notify.to[index]

            def deliver(items: Sequence[_KeyedMessage]) -> int:
                send_message(address, items[0].message, os.environ)
                self._record_sent(items[0].key, index)
                return 1

            self._outboxes[index] = Outbox(f"notify: {describe_address(address)}", deliver, _SETTINGS).start()
        return self._outboxes[index]

    def _read_sent(self, key: str) -> Iterator[int]:
        """The indices of the addresses to which a message was sent."""
        try:
            events = journal.read_events(self._sent_path)
        except OSError as error:  # send it again: a duplicate is better than none
            get_log().warning("notify: cannot read which messages were sent, so some may be sent again: %s", error)
            return
        for event in events:
            if event["event"] == "sent" and event.get("key") == key:
                yield event.get("place", -1)

    def _record_sent(self, key: str, index: int) -> None:
        try:
            journal.append_event(self._sent_path, "sent", {"key": key, "place": index})
        except OSError as error:
            get_log().warning("notify: cannot record that a message was sent, so it may be sent again: %s", error)

    @property
    def _sent_path(self) -> Path:
        return self._folder.path / _SENT_MESSAGES


def _count_launches(folder: RunFolder) -> int:
    """How often a user has requested the run: each request has a separate end."""
    try:
        return folder.read_record().count_starts("fresh")
    except FolderError:
        return 0


def _list_earlier_ends(report: Report) -> list[str]:
    """How the earlier runs of the same profile ended, as far as their history can be read."""
    if not report.history:
        return []
    try:
        records = list(read_history(Path(report.history)).records)
    except OSError:
        return []
    if records and records[-1].run == report.run:
        records.pop()
    return [record.end for record in records]
