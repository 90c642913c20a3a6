"""Runs are put together: with the receivers that their profile names, an archive and a comparison."""

from pathlib import Path

import pytest

from tests.conftest import RUN_ID, Write, command_plan_of, load
from tests.processes.lone_processes import build_lone_profile
from tests.processes.receiver import Receiver
from torchyard.archive.contents import RECORD
from torchyard.assembly import create_runner, judge_run, list_sinks, main, sweep_run
from torchyard.host.processes import find_labelled
from torchyard.model.event import AttemptStarted, EndReached, RunEvent
from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Report, RunEnd
from torchyard.run.control import LocalControl
from torchyard.run.folder import AttemptPlan, RunFolder
from torchyard.run.services import Sinks
from torchyard.sinks.log import LogSink
from torchyard.sinks.messages import MessageSink
from torchyard.sinks.metrics import MetricsSink
from torchyard.sinks.progress_file import ProgressFileSink
from torchyard.steps.submit import submit
from torchyard.trend.records import Record

REASON = "its lease has ended"


def test_watchdog_stops_the_job_only_with_stop(folder: RunFolder, saved_plan: CommandPlan) -> None:
    """`keep` leaves the job running under its lease, and `stop` removes it, with `guard` in the journal."""
    submit(saved_plan, Deadlines())
    assert main(["keep", str(folder.path)]) == 0
    assert (len(find_labelled(saved_plan.label)) > 0, folder.read_record().find_last("end")) == (True, {})
    assert main(["stop", str(folder.path)]) == 0
    assert (find_labelled(saved_plan.label), folder.read_record().find_last("end")["by"]) == ([], "guard")


def test_profile_chooses_the_sinks_of_its_run(write: Write, receiver: Receiver) -> None:
    """Every run has a log and its progress file; messages and metrics are sent only if the profile asks for them."""
    plain = list_sinks(load(write()), RUN_ID, "")
    assert [type(sink) for sink in plain] == [LogSink, ProgressFileSink]
    full = list_sinks(load(write(notify=[receiver.address], metrics_to=["tensorboard"])), RUN_ID, "")
    assert [type(sink) for sink in full[:4]] == [LogSink, ProgressFileSink, MessageSink, MetricsSink]
    runner = create_runner(load(write()), RUN_ID, LocalControl(), other_sinks=full)
    assert len(runner.services.sinks) == 2 + len(full)


def test_end_of_a_swept_run_is_sent_from_its_folder_alone(write: Write, receiver: Receiver) -> None:
    """A sweep reads the receivers from the folder of a run that has started, and sends nothing if there are none."""
    profile = load(write(notify=[receiver.address]))
    folder = RunFolder.of(profile, RUN_ID)
    folder.path.mkdir(parents=True)
    for _ in range(2):
        folder.record_event("start", run="an-id", profile="sample", entry="fresh")
        assert sweep_run(folder, "sweep", RunEnd("swept", REASON)) == ()
        Sinks(list_sinks(profile, RUN_ID, "")).emit(AttemptStarted(1, "sample-1"))
    folder.record_event("start", run="an-id", profile="sample", entry="fresh")
    assert sweep_run(folder, "sweep", RunEnd("swept", REASON)) == ()
    assert receiver.titles == ["sample: failed"] * len(receiver.titles)
    assert receiver.received[-1]["message"].partition("\n")[0] == REASON
    assert len(receiver.received) == 2


def test_message_about_a_swept_run_is_about_its_report(
    folder: RunFolder, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receivers get the report that is saved: with the attempt that the sweep has stopped, and the run's time."""
    profile = build_lone_profile(write, "import time; time.sleep(60)")
    profile = profile.model_copy(update={"notify": load(write(notify=["json://localhost"])).notify})
    plan = command_plan_of(profile, folder.path)
    folder.record_event("start", run="an-id", profile="sample", entry="fresh")
    folder.save_attempt_plan(1, AttemptPlan(plan=plan, deadlines=Deadlines(grace=1.0)))
    (folder.path / "receivers.json").write_text(profile.model_dump_json(exclude_unset=True))
    submit(plan, Deadlines())
    sent: list[Report] = []

    def record_end(_: MessageSink, event: RunEvent) -> None:
        if isinstance(event, EndReached):
            sent.append(event.report)

    monkeypatch.setattr(MessageSink, "take", record_end)
    assert sweep_run(folder, "sweep", RunEnd("swept", REASON)) == ()
    assert sent == [folder.report()]
    assert [attempt.number for attempt in sent[0].attempts] == [1]
    assert sent[0].seconds > 0


def test_numbers_are_in_the_folder_and_in_the_history(write: Write) -> None:
    """The numbers of a run are stored for its archive and for later runs; nothing is compared without `trend`."""
    profile = load(write())
    folder = RunFolder.of(profile, RUN_ID)
    folder.path.mkdir(parents=True)
    judgement = judge_run(profile, folder.path, "failed", None, 100.0)
    assert judgement.verdict is None
    record = Record.model_validate_json((folder.path / RECORD).read_bytes())
    assert (record.run, record.began, record.end) == (folder.name, 100.0, "failed")
    assert folder.name in Path(judgement.history).read_text()
