"""RunNotifier sends each message once, across processes of the run, and none of its errors ends the run."""

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RUN_ID, Write, load
from tests.hang_examples import HANG
from tests.histories import build_records
from tests.receiver import Receiver
from tests.reports import short_report
from torchyard.model.hang import HangUpdate
from torchyard.model.run import Report, Status
from torchyard.run.folder import RunFolder
from torchyard.run.notifications import RunNotifier, check_notifications, notify_swept_end
from torchyard.trend.records import store_record

WAITING = Status(state="pending", reason="no node has 8 free GPUs")
RUNNING = Status(state="running", reason="2 of 2 pods run")


def create_notifier(write: Write, folder: RunFolder, receiver: Receiver, **keys: Any) -> RunNotifier:
    """The notifier of a run whose profile sends its messages to a receiver."""
    notify = {"to": [receiver.address]} | keys.pop("notify", {})
    profile = load(write(notify=notify, **keys))
    notifier = RunNotifier(profile, RUN_ID, folder, "http://prefect/runs/1")
    notifier.open(1)
    return notifier


def create_report(end: str, **fields: object) -> Report:
    return short_report(end).model_copy(update={"run": "sample-a1b2c3d4"} | fields)


def test_failure_is_sent_once_per_request(write: Write, folder: RunFolder, receiver: Receiver) -> None:
    """A later process of an ended run does not send its end again, but a run that a user requests again does."""
    folder.record_event("start", entry="fresh")
    assert create_notifier(write, folder, receiver).finish(create_report("failed")) == ()
    assert create_notifier(write, folder, receiver).finish(create_report("failed")) == ()
    assert receiver.titles == ["x: failed"]
    assert "http://prefect/runs/1" in receiver.received[0]["message"]
    folder.record_event("start", entry="fresh")
    create_notifier(write, folder, receiver).finish(create_report("failed"))
    assert receiver.titles == ["x: failed"] * 2


def test_message_that_did_not_arrive_is_sent_by_the_next_process(
    write: Write, folder: RunFolder, receiver: Receiver
) -> None:
    """A message that an earlier process could not send is sent when the run's end is reported again."""
    receiver.status = 500
    (loss,) = create_notifier(write, folder, receiver).finish(create_report("failed"))
    assert loss.startswith("json://… has not got 'x: failed'")
    folder.save_report(create_report("failed"))
    receiver.status = 200
    create_notifier(write, folder, receiver).repeat_end()
    assert receiver.titles == ["x: failed"]


def test_only_enabled_events_are_sent(write: Write, folder: RunFolder, receiver: Receiver) -> None:
    """A success is sent only if `notify.events` contains it."""
    create_notifier(write, folder, receiver).finish(create_report("succeeded"))
    assert receiver.titles == []
    create_notifier(write, folder, receiver, notify={"events": ["succeeded"]}).finish(create_report("succeeded"))
    assert receiver.titles == ["x: succeeded"]


def test_success_after_a_failed_night_is_a_recovery(
    write: Write, folder: RunFolder, receiver: Receiver, tmp_path: Path
) -> None:
    """The message about a success names the failure before it, from the history, whose last line is this run."""
    history = tmp_path / "history.jsonl"
    earlier, current = build_records([1.0, 2.0])
    store_record(history, earlier.model_copy(update={"end": "failed"}))
    store_record(history, current.model_copy(update={"run": "sample-a1b2c3d4"}))
    create_notifier(write, folder, receiver).finish(create_report("succeeded", history=str(history)))
    assert receiver.titles == ["x: recovered"]
    assert "the run before it did not succeed" in receiver.received[0]["message"]


def wait_for_messages() -> None:
    """Wait until no thread sends a message any more."""
    for thread in threading.enumerate():
        if thread.name == "notify":
            thread.join(10)


def test_long_wait_is_sent_once(write: Write, folder: RunFolder, receiver: Receiver) -> None:
    """A wait of more than `notify.waiting` is sent with its reason, by one process of the run only."""
    for _ in range(2):
        notifier = create_notifier(write, folder, receiver, notify={"waiting": "10m"})
        for waited_s in (1.0, 599.0, 601.0, 700.0):
            notifier.record_status(WAITING, waited_s)
        wait_for_messages()
    assert receiver.titles == ["sample: waiting"]
    assert "10 min 01 s" in receiver.received[0]["message"]
    assert WAITING.reason in receiver.received[0]["message"]


def test_certain_hang_is_sent_once(write: Write, folder: RunFolder, receiver: Receiver) -> None:
    """Only a hang that is certain is sent, with its rank and what `on_hang` does about it."""
    notifier = create_notifier(write, folder, receiver)
    for is_certain in (False, True, False, True):
        notifier.notify_hang(HangUpdate(hang=HANG, is_certain=is_certain))
    wait_for_messages()
    assert receiver.titles == ["sample: hanging"]
    text = receiver.received[0]["message"]
    assert (HANG.sentence in text, "on_hang: report" in text, "torchyard why " in text) == (True, True, True)


def test_start_is_journalled_and_ends_the_wait(write: Write, folder: RunFolder, receiver: Receiver) -> None:
    """The journal records how long the job waited for its start, and a node that is lost later is not a wait."""
    notifier = create_notifier(write, folder, receiver, notify={"waiting": "10m"})
    notifier.record_status(RUNNING, 12.3)
    notifier.record_status(RUNNING, 13.0)
    notifier.record_status(WAITING, 9000.0)
    wait_for_messages()
    assert (receiver.titles, [event["waited_s"] for event in folder.events()]) == ([], [12.3])


def test_end_of_a_swept_run_is_sent_from_its_folder_alone(write: Write, folder: RunFolder, receiver: Receiver) -> None:
    """A sweep reads the profile from the run's folder, and sends nothing if there is none."""
    notify_swept_end(folder, RUN_ID, "swept", "its lease has ended")
    create_notifier(write, folder, receiver)
    notify_swept_end(folder, RUN_ID, "swept", "its lease has ended")
    assert (receiver.titles, receiver.received[0]["message"].partition("\n")[0]) == (
        ["sample: failed"],
        "its lease has ended",
    )


def test_unreadable_history_and_journal_do_not_end_the_run(
    write: Write, folder: RunFolder, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """If neither the history nor the list of sent messages can be read, the message is sent, with a warning."""
    notifier = create_notifier(write, folder, receiver)
    (folder.path / "messages").mkdir()
    assert notifier.finish(create_report("failed", history=str(folder.path))) == ()
    assert receiver.titles == ["x: failed"]
    assert "notify: cannot record that a message was sent" in caplog.text


def test_preflight_finds_what_is_missing_before_the_first_attempt(write: Write, tmp_path: Path) -> None:
    """A variable that is not set fails preflight; for a later attempt, whose job may need hours, it is a warning."""
    profile = load(write(notify=["$NO_SUCH_HOOK"]))
    assert [check.verdict for check in check_notifications(profile)] == ["failed"]
    assert [check.verdict for check in check_notifications(profile, is_first_attempt=False)] == ["warning"]
    assert check_notifications(load(write())) == ()
