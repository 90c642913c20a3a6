"""The messages of a run (`notify`): its job waits for long, a rank hangs, a loss is nan, and how the run ended."""

import os
import time
from collections.abc import Iterator, Sequence

from torchyard.common.log import get_log
from torchyard.common.outbox import Outbox, OutboxSettings, share_timeout
from torchyard.common.project_root import runs_folder
from torchyard.model.errors import FolderError
from torchyard.model.event import AttemptStarted, BadLossRead, EndReached, RunEvent, StatusRead
from torchyard.model.finding import Finding
from torchyard.model.hang import HangUpdate
from torchyard.model.observe import Notify
from torchyard.model.observe import RunEvent as NotifyEvent
from torchyard.model.profile import Profile
from torchyard.model.run import Report
from torchyard.notify.delivery import Message
from torchyard.notify.message import (
    list_end_events,
    write_bad_loss_message,
    write_end_message,
    write_hang_message,
    write_waiting_message,
)
from torchyard.notify.targets import check_addresses, describe_address, remember_addresses
from torchyard.run.folder import RunFolder
from torchyard.run.services import Sink
from torchyard.sinks.late_messages import LATE_MESSAGES, KeyedMessage, list_sent, send_keyed_message
from torchyard.trend.runs import read_profile_records

_END_KEY = "end "  # begins the key of a message about the run's end
# Retried while the run goes on, and once more at its end, which a receiver that refuses must not delay.
_SETTINGS = OutboxSettings(retry_s=30.0, last_retry_s=None)


class MessageSink(Sink):
    """Send the messages that `notify` enables to each of its addresses.

    Each message is sent once per address: the file `messages` of the run's folder records what was sent, so that the
    next process of the run does not repeat it. Each address has an outbox, because one that hangs must not delay the
    others; a failure is retried while the run goes on, and reported at its end. A message about the end that did not
    arrive is kept in the run's folder for the next sweep.
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
        self._outboxes: dict[int, Outbox[KeyedMessage]] = {}  # by the index of the address
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
                key = f"{_END_KEY}{report.run} {report.end} {_count_launches(self._folder)}"
                self._send_once(event, key, write_end_message(event, report, earlier_ends, self._link))
                return

    def finish(self, timeout_s: float) -> list[str]:
        losses: list[str] = []
        late_messages: list[KeyedMessage] = []
        outboxes = self._outboxes
        self._outboxes = {}
        for (index, outbox), remaining_s in share_timeout(outboxes.items(), timeout_s):
            undelivered = outbox.finish(remaining_s)
            if undelivered is None:
                continue
            for item in undelivered.items:
                if item.key.startswith(_END_KEY):  # that a job waits or hangs is no news after its end
                    late_messages.append(item)
                title = item.message.title
                loss = f"{describe_address(self._notify.to[index])} has not got {title!r}: {undelivered.reason}"
                get_log().warning("notify: %s", loss)
                losses.append(loss)
        if outboxes:
            LATE_MESSAGES.keep(self._folder.path, late_messages)
        return losses

    def _send_once(self, event: NotifyEvent, key: str, message: Message) -> None:
        """Send a message to each address that has not received it from this or an earlier process of the run."""
        if event not in self._notify.events or key in self._queued_keys:
            return
        self._queued_keys.add(key)
        sent_indices = self._read_sent(key)
        for index, address in enumerate(self._notify.to):
            if index not in sent_indices:
                self._open_outbox(index).put(KeyedMessage(key, index, address, message, time.time()))

    def _open_outbox(self, index: int) -> Outbox[KeyedMessage]:
        """The outbox of an address, which is started with its first message."""
        if index not in self._outboxes:
            address = self._notify.to[index]

            def deliver(items: Sequence[KeyedMessage]) -> int:
                send_keyed_message(self._folder.path, items[0])
                return 1

            self._outboxes[index] = Outbox(f"notify: {describe_address(address)}", deliver, _SETTINGS).start()
        return self._outboxes[index]

    def _read_sent(self, key: str) -> set[int]:
        """The indices of the addresses to which a message was sent; empty if that cannot be read."""
        try:
            return list_sent(self._folder.path, key)
        except OSError as error:  # send it again: a duplicate is better than none
            get_log().warning("notify: cannot read which messages were sent, so some may be sent again: %s", error)
            return set()


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
        records = read_profile_records(runs_folder(), report.profile)  # with any image: a fix may be in a new one
    except OSError:
        return []
    return [record.end for record in reversed(records) if record.run != report.run]
