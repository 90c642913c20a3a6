"""Sends a run's messages (`notify`) and metrics (`metrics_to`) to their receivers.

Nothing here raises, ends a run or delays its job: everything is sent on separate threads, and what could not be
delivered is a warning and a line of the report. The run's folder records what was sent, for the next process.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from torchyard.common.local_errors import LocalErrorGuard
from torchyard.common.log import get_log
from torchyard.common.private_files import write_private_text
from torchyard.model.errors import FolderError
from torchyard.model.finding import Finding, warning_check
from torchyard.model.hang import HangUpdate
from torchyard.model.observe import RunEvent
from torchyard.model.profile import Profile
from torchyard.model.run import End, Report, Row, Status
from torchyard.notify.delivery import Delivery, Message
from torchyard.notify.targets import check_addresses, remember_addresses
from torchyard.pages.message import list_end_events, write_end_message, write_hang_message, write_waiting_message
from torchyard.run import journal
from torchyard.run.folder import RunFolder
from torchyard.trackers.experiment import RowSteps, describe_end, describe_experiment
from torchyard.trackers.registry import check_trackers, create_trackers
from torchyard.trackers.worker import TrackerWorker
from torchyard.trend.records import read_history

_END_TIMEOUT_S = 15.0  # how long a run waits at its end for all receivers together
_MIN_TIMEOUT_S = 1.0  # for each receiver, even if the others have used up the time
_MESSAGES = "messages"  # the file of a run that lists the messages that were sent
_PROFILE = "outlets.json"  # the profile, for a sweep: it has no other


def check_notifications(profile: Profile, *, is_first_attempt: bool = True) -> tuple[Finding, ...]:
    """Preflight's findings about `notify` and `metrics_to`; after the first attempt failures are only warnings."""
    checks: list[Finding] = []
    if profile.notify:
        checks += check_addresses(profile.notify, os.environ)
    checks += check_trackers(profile.metrics_to)
    if is_first_attempt:
        return tuple(checks)
    return tuple(
        warning_check(check.where, check.what, check.remedy) if check.verdict == "failed" else check for check in checks
    )


def notify_swept_end(folder: RunFolder, run_id: str, end: End, sentence: str) -> None:
    """Send the end of a run that a sweep has ended. Nothing is raised.

    Nothing is sent if the run's folder has no profile, because then no message was requested.
    """
    no_profile = contextlib.suppress(FileNotFoundError)
    with LocalErrorGuard().tolerate(f"send the end of {folder.name}", ignore_errors=True), no_profile:
        profile = Profile.model_validate_json((folder.path / _PROFILE).read_bytes())
        notifier = RunNotifier(profile, run_id, folder)
        notifier.open(len(folder.attempts()))
        notifier.notify_end(end, sentence)


class RunNotifier:
    """Send the messages and the metrics of one run.

    Order of calls: `open` at each attempt, then `add_row`, `record_status` and `notify_hang` while its job runs, and at
    the end `finish`, which waits at most `_END_TIMEOUT_S` and returns what could not be delivered.

    Threads. All methods are called by the run's thread; each tracker has a thread, and each message to an address has
    one; `finish` waits for them. Each message is sent once per address: the file `messages` of the run's folder records
    what was sent, so that the next process of the run does not repeat it.

    Errors. Failures to send are warnings and part of the result of `finish`; none ends the run.
    """

    def __init__(self, profile: Profile, run_id: str, folder: RunFolder, link: str = "") -> None:
        """`link`: the run's address in the orchestrator; empty if it has none."""
        self._profile = profile
        self._run_id = run_id
        self._folder = folder
        self._link = link
        self._addresses = profile.notify.to if profile.notify else ()
        self._delivery = Delivery(self._addresses, os.environ)
        self._tracker_workers: list[TrackerWorker] = []
        self._steps = RowSteps()
        self._attempt = 0
        self._has_started = False
        self._sent_keys: set[str] = set()
        self._local_errors = LocalErrorGuard()
        if profile.notify:
            remember_addresses(profile.notify, os.environ)

    def open(self, attempt: int) -> None:
        """Start an attempt: the rows that follow belong to it."""
        if self._profile.notify or self._profile.metrics_to:
            with self._local_errors.tolerate("save the profile for messages about the run's end", ignore_errors=True):
                write_private_text(self._folder.path / _PROFILE, self._profile.model_dump_json(exclude_unset=True))
        self._attempt = attempt
        self._steps = RowSteps()
        self._has_started = False
        with self._local_errors.tolerate("record metrics", ignore_errors=True):
            self._tracker_workers = self._tracker_workers or self._create_tracker_workers()

    def _create_tracker_workers(self) -> list[TrackerWorker]:
        folder = self._folder
        experiment = describe_experiment(self._profile, folder.name, self._run_id, str(folder.path), self._link)
        trackers = create_trackers(self._profile.metrics_to)
        return [TrackerWorker(name, tracker, experiment) for name, tracker in trackers.items()]

    def add_row(self, row: Row) -> None:
        """Queue a row of rank 0 for each tracker."""
        if not self._tracker_workers:
            return
        point = self._steps.convert(row)
        if point:
            for worker in self._tracker_workers:
                worker.add(self._attempt, point)

    def record_status(self, status: Status, waited_s: float) -> None:
        """Record a status of the job: journal its start, and send a message if it has waited for `notify.waiting`."""
        if status.state == "running" and not self._has_started:
            self._has_started = True
            self._folder.record_event("running", attempt=self._attempt, waited_s=round(waited_s, 1))
        notify = self._profile.notify
        if not notify or self._has_started or status.state != "pending" or waited_s < notify.waiting:
            return
        message = write_waiting_message(self._profile, self._folder.name, waited_s, status.reason, self._link)
        self._send_once("waiting", f"waiting {self._attempt}", message)

    def notify_hang(self, update: HangUpdate) -> None:
        """Send a message, once per attempt, if a rank certainly hangs."""
        if update.hang and update.is_certain:
            message = write_hang_message(self._profile, self._folder.name, update.hang, self._link)
            self._send_once("hanging", f"hanging {self._attempt}", message)

    def finish(self, report: Report) -> tuple[str, ...]:
        """Send the messages and the last metrics of a run's end; return what was not delivered within the timeout."""
        losses: list[str | None] = []
        with self._local_errors.tolerate("send messages and metrics", ignore_errors=True):
            deadline = time.monotonic() + _END_TIMEOUT_S
            self._notify_report(report)
            workers = self._tracker_workers
            self._tracker_workers = []  # a second call, after an error, must not finish them again
            end = describe_end(report)
            losses = [worker.finish(end, max(deadline - time.monotonic(), _MIN_TIMEOUT_S)) for worker in workers]
            losses += self._delivery.finish(max(deadline - time.monotonic(), _MIN_TIMEOUT_S))
        return tuple(filter(None, losses))

    def repeat_end(self) -> None:
        """Send the messages that an earlier process of this run, which has ended, could not send."""
        try:
            report = self._folder.report()
        except FolderError:
            return
        if report:
            self.finish(report)

    def notify_end(self, end: End, sentence: str) -> None:
        """Send the messages of the end of a run that has no report."""
        name = self._profile.name
        folder = self._folder
        self.finish(
            Report(
                profile=name,
                run=folder.name,
                end=end,
                sentence=sentence,
                seconds=0,
                steps=(),
                attempts=(),
                folder=str(folder.path),
            )
        )

    def _notify_report(self, report: Report) -> None:
        earlier_ends = _list_earlier_ends(report)
        enabled_events = self._profile.notify.events if self._profile.notify else ()
        for event in list_end_events(report, earlier_ends):
            if event in enabled_events:  # the first one: an end is reported by one message
                key = f"end {report.run} {report.end} {_count_launches(self._folder)}"
                self._send_once(event, key, write_end_message(event, report, earlier_ends, self._link))
                return

    def _send_once(self, event: RunEvent, key: str, message: Message) -> None:
        """Send a message to each address that has not received it from this or an earlier process of the run."""
        if key in self._sent_keys:
            return
        self._sent_keys.add(key)
        enabled_events = self._profile.notify.events if self._profile.notify else ()
        sent_indices = set(self._read_sent(key))
        pending_indices = [index for index in range(len(self._addresses)) if index not in sent_indices]
        if event in enabled_events and pending_indices:
            self._delivery.send(message, pending_indices, lambda index: self._record_sent(key, index))

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
        return self._folder.path / _MESSAGES


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
