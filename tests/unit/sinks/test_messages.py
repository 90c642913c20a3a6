"""MessageSink sends each message once, across processes of the run, and none of its errors ends the run."""

from collections.abc import Iterable
from typing import Any

import pytest

from tests.builders.hang_examples import HANG
from tests.builders.histories import build_records
from tests.builders.reports import short_report
from tests.conftest import Write, load
from tests.processes.receiver import Receiver
from tests.support.waiting import wait_until
from torchyard.common.project_root import runs_folder
from torchyard.model.event import AttemptStarted, BadLossRead, EndReached, StatusRead
from torchyard.model.hang import HangUpdate
from torchyard.model.run import BadLoss, Report, Status
from torchyard.run.folder import RunFolder
from torchyard.sinks.messages import MessageSink
from torchyard.trend.records import history_path, store_record

WAITING = Status(state="pending", reason="no node has 8 free GPUs")
RUNNING = Status(state="running", reason="2 of 2 pods run")


def create_sink(write: Write, folder: RunFolder, receiver: Receiver, **keys: Any) -> MessageSink:
    """The sink of a run whose first attempt has started, and whose profile sends its messages to a receiver."""
    notify = {"to": [receiver.address]} | keys.pop("notify", {})
    profile = load(write(notify=notify, **keys))
    assert profile.notify
    sink = MessageSink(profile, profile.notify, folder, "http://prefect/runs/1")
    sink.take(AttemptStarted(1, "sample-1"))
    return sink


def end_run(sink: MessageSink, report: Report) -> list[str]:
    """Send the end of the run; what was not sent."""
    sink.take(EndReached(report))
    return sink.finish(10)


def create_report(end: str, **fields: object) -> Report:
    return short_report(end).model_copy(update={"run": "sample-a1b2c3d4"} | fields)


def test_failure_is_sent_once_per_request(write: Write, folder: RunFolder, receiver: Receiver) -> None:
    """A later process of an ended run does not send its end again, but a run that a user requests again does."""
    folder.record_event("start", entry="fresh")
    assert end_run(create_sink(write, folder, receiver), create_report("failed")) == []
    assert end_run(create_sink(write, folder, receiver), create_report("failed")) == []
    assert receiver.titles == ["x: failed"]
    assert "http://prefect/runs/1" in receiver.received[0]["message"]
    folder.record_event("start", entry="fresh")
    end_run(create_sink(write, folder, receiver), create_report("failed"))
    assert receiver.titles == ["x: failed"] * 2


def test_message_that_did_not_arrive_is_sent_by_the_next_process(
    write: Write, folder: RunFolder, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """A message that an earlier process could not send is a loss of its run, and the next process sends it."""
    receiver.status = 500
    (loss,) = end_run(create_sink(write, folder, receiver), create_report("failed"))
    assert loss.startswith("json://… has not got 'x: failed': ")
    assert f"notify: {loss}" in caplog.text
    receiver.status = 200
    end_run(create_sink(write, folder, receiver), create_report("failed"))
    assert receiver.titles == ["x: failed"]


def test_message_of_a_receiver_that_was_down_arrives_later(write: Write, folder: RunFolder, receiver: Receiver) -> None:
    """A message that was refused while the job ran is sent again at the end of the run."""
    receiver.status = 500
    sink = create_sink(write, folder, receiver, notify={"events": ["hanging"]})
    sink.take(HangUpdate(hang=HANG, is_certain=True))
    wait_until(lambda: receiver.request_count)
    receiver.status = 200
    assert end_run(sink, create_report("succeeded")) == []
    assert receiver.titles == ["sample: hanging"]


def test_address_that_hangs_delays_neither_the_run_nor_the_others(
    write: Write, folder: RunFolder, receiver: Receiver
) -> None:
    """The end does not wait for a response longer than its timeout, and each address has its own loss."""
    receiver.is_hanging = True
    sink = create_sink(write, folder, receiver, notify={"to": [receiver.address, "json://127.0.0.1:1/x"]})
    sink.take(EndReached(create_report("failed")))
    hanging, refusing = sink.finish(1.0)
    assert hanging.endswith("has not got 'x: failed': no answer for 1 s")
    assert "Connection" in refusing


def test_only_enabled_events_are_sent(write: Write, folder: RunFolder, receiver: Receiver) -> None:
    """A success is sent only if `notify.events` contains it."""
    end_run(create_sink(write, folder, receiver), create_report("succeeded"))
    assert receiver.titles == []
    end_run(create_sink(write, folder, receiver, notify={"events": ["succeeded"]}), create_report("succeeded"))
    assert receiver.titles == ["x: succeeded"]


@pytest.mark.parametrize("image", ["train:1", "train:2"])
def test_success_after_a_failed_night_is_a_recovery(
    write: Write, folder: RunFolder, receiver: Receiver, image: str
) -> None:
    """The message about a success names the failure before it, from the histories, also after a fix in a new image."""
    earlier, current = build_records([1.0, 2.0])
    key = earlier.key.model_copy(update={"profile": "x", "image": "train:1"})
    store_record(history_path(runs_folder(), key), earlier.model_copy(update={"end": "failed", "key": key}))
    key = key.model_copy(update={"image": image})
    history = history_path(runs_folder(), key)
    store_record(history, current.model_copy(update={"run": "sample-a1b2c3d4", "key": key}))
    end_run(create_sink(write, folder, receiver), create_report("succeeded", history=str(history)))
    assert receiver.titles == ["x: recovered"]
    assert "the run before it did not succeed" in receiver.received[0]["message"]


def take_statuses(sink: MessageSink, statuses: Iterable[StatusRead]) -> None:
    """Take statuses of the job, and wait for the messages about them."""
    for status in statuses:
        sink.take(status)
    assert sink.finish(10) == []


def test_long_wait_is_sent_once(write: Write, folder: RunFolder, receiver: Receiver) -> None:
    """A wait of more than `notify.waiting` is sent with its reason, by one process of the run only."""
    for _ in range(2):
        sink = create_sink(write, folder, receiver, notify={"waiting": "10m"})
        take_statuses(sink, [StatusRead(WAITING, waited_s) for waited_s in (1.0, 599.0, 601.0, 700.0)])
    assert receiver.titles == ["sample: waiting"]
    assert "10 min 01 s" in receiver.received[0]["message"]
    assert WAITING.reason in receiver.received[0]["message"]


def test_node_that_is_lost_later_is_not_a_wait(write: Write, folder: RunFolder, receiver: Receiver) -> None:
    """A job that has run does not wait for its start any more."""
    sink = create_sink(write, folder, receiver, notify={"waiting": "10m"})
    take_statuses(sink, [StatusRead(RUNNING, 12.3), StatusRead(WAITING, 9000.0)])
    assert receiver.titles == []


def test_certain_hang_is_sent_once(write: Write, folder: RunFolder, receiver: Receiver) -> None:
    """Only a hang that is certain is sent, with its rank and what `on_hang` does about it."""
    sink = create_sink(write, folder, receiver)
    for is_certain in (False, True, False, True):
        sink.take(HangUpdate(hang=HANG, is_certain=is_certain))
    sink.finish(10)
    assert receiver.titles == ["sample: hanging"]
    text = receiver.received[0]["message"]
    assert (HANG.sentence in text, "on_hang: report" in text, "torchyard why " in text) == (True, True, True)


def test_loss_that_is_nan_is_sent_once(write: Write, folder: RunFolder, receiver: Receiver) -> None:
    """A loss that is nan is sent once, with its row and what `on_nan` does about it."""
    sink = create_sink(write, folder, receiver)
    for _ in range(2):
        sink.take(BadLossRead(BadLoss(name="loss", row="epoch 2: loss nan", count=1)))
    sink.finish(10)
    assert receiver.titles == ["sample: bad-loss"]
    text = receiver.received[0]["message"]
    assert ("epoch 2: loss nan" in text, "on_nan: report" in text) == (True, True)


def test_unreadable_history_and_journal_do_not_end_the_run(
    write: Write, folder: RunFolder, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """If neither the history nor the list of sent messages can be read, the message is sent, with a warning."""
    sink = create_sink(write, folder, receiver)
    (folder.path / "messages").mkdir()
    assert end_run(sink, create_report("failed", history=str(folder.path))) == []
    assert receiver.titles == ["x: failed"]
    assert "notify: cannot record that a message was sent" in caplog.text
