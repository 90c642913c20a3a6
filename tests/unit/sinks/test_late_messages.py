"""Messages about a run's end that a receiver did not take: a sweep sends them."""

import os
from pathlib import Path

import pytest

from tests.builders.hang_examples import HANG
from tests.builders.reports import short_report
from tests.conftest import Write, load
from tests.processes.receiver import Receiver
from torchyard.model.event import AttemptStarted, EndReached
from torchyard.model.hang import HangUpdate
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.sinks import late_messages
from torchyard.sinks.late_messages import send_late_messages
from torchyard.sinks.messages import MessageSink

NOTIFY = {"to": ["$TEAM_CHAT"], "events": ["failed", "hanging"]}


@pytest.fixture
def late_run(write: Write, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a failed run whose receiver refused the messages about a hang and about its end."""
    monkeypatch.setenv("TEAM_CHAT", receiver.address)
    folder = RunFolder(runs_folder() / "sample-a1b2c3d4")
    folder.path.mkdir(parents=True)
    folder.record_event("start", entry="fresh")
    profile = load(write(notify=NOTIFY))
    assert profile.notify
    receiver.status = 500
    sink = MessageSink(profile, profile.notify, folder)
    sink.take(AttemptStarted(1, "sample-1"))
    sink.take(HangUpdate(hang=HANG, is_certain=True))
    sink.take(EndReached(short_report("failed").model_copy(update={"run": folder.name})))
    assert len(sink.finish(10)) == 2
    return folder.path


def test_end_is_sent_once_its_receiver_answers(late_run: Path, receiver: Receiver) -> None:
    """The message about the end arrives with the first sweep that reaches the receiver, once; the hang is over."""
    send_late_messages()
    assert (receiver.titles, (late_run / "late-messages.json").exists()) == ([], True)
    receiver.status = 200
    send_late_messages()
    send_late_messages()
    assert (receiver.titles, (late_run / "late-messages.json").exists()) == (["x: failed"], False)


def test_address_is_kept_by_the_name_of_its_variable(late_run: Path, receiver: Receiver) -> None:
    """The file has the address as the profile has it, without what the variable contains."""
    text = (late_run / "late-messages.json").read_text()
    assert ("$TEAM_CHAT" in text, receiver.address in text) == (True, False)


def test_message_that_another_process_has_sent_is_not_sent_again(late_run: Path, receiver: Receiver) -> None:
    """A message that was recorded as sent is dropped."""
    (item,) = late_messages.LATE_MESSAGES.read(late_run) or []
    receiver.status = 200
    late_messages.send_keyed_message(late_run, item)
    send_late_messages()
    assert receiver.titles == ["x: failed"]


def test_old_message_is_dropped(late_run: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of a day ago is not sent any more."""
    monkeypatch.setattr(late_messages, "_MAX_AGE_S", 0.0)
    receiver.status = 200
    send_late_messages()
    assert (receiver.titles, (late_run / "late-messages.json").exists()) == ([], False)


def test_address_that_fails_costs_one_try(late_run: Path, receiver: Receiver) -> None:
    """Two runs with messages to one address that does not answer cost one try of it in a sweep."""
    second_run = late_run.with_name("sample-00000000")
    second_run.mkdir()
    for name in ("journal", "late-messages.json"):
        (second_run / name).write_bytes((late_run / name).read_bytes())
    count = receiver.request_count
    send_late_messages()
    assert receiver.request_count == count + 1


def test_unreadable_file_is_reported(late_run: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that cannot be read is reported once and removed."""
    (late_run / "late-messages.json").write_text("{")
    send_late_messages()
    send_late_messages()
    assert [message for message in caplog.messages if "cannot be read" in message] == [caplog.messages[-1]]
    assert not os.path.exists(late_run / "late-messages.json")
