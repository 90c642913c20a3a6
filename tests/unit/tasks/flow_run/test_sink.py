"""A run in Prefect: its name, its pages, and its report."""

from functools import partial

from tests.builders.histories import KEY, build_records
from tests.builders.reports import short_report
from tests.conftest import RUN_ID
from tests.doubles.fake_prefect import FakePrefect
from tests.support.waiting import wait_until
from torchyard.launchers.registry import make_plan
from torchyard.loading.profile import load_profile
from torchyard.model.event import AttemptStarted, ChecksMade, EndReached, PlanMade, ReportWritten, RowsRead, RunStarted
from torchyard.model.finding import Finding
from torchyard.model.hang import HangUpdate
from torchyard.model.run import TRIAL_RUN, Report, RunResult
from torchyard.model.trend import TrendVerdict
from torchyard.run.folder import runs_folder
from torchyard.tasks.flow_run.control import PrefectControl
from torchyard.tasks.flow_run.sink import PrefectSink
from torchyard.trend.records import HistoryKey, history_path, store_record


def write_report(report: Report) -> None:
    """The end of a run whose flow run contains others."""
    with PrefectControl(RUN_ID) as control:
        sink = PrefectSink(control, load_profile("digits-local"), is_flow_run=False)
        sink.take(RunStarted())
        sink.take(ReportWritten(report))


def test_run_is_named_and_tagged_and_its_page_written_again(fake_prefect: FakePrefect) -> None:
    """A run gets its profile's name at its start, one artifact per page, and its end as a tag."""
    with PrefectControl(RUN_ID) as control:
        sink = PrefectSink(control, load_profile("digits-local"), is_flow_run=True)
        sink.take(RunStarted())
        sink.show_page("metrics", "a loss", lambda: "one")
        wait_until(lambda: fake_prefect.artifacts)
        sink.show_page("metrics", "a loss", lambda: "two")
        wait_until(lambda: fake_prefect.artifact_updates)
        sink.take(ReportWritten(short_report()))
    assert [(artifact.get("key"), artifact["data"]) for artifact in fake_prefect.artifacts][:1] == [
        ("metrics-digits-local", "one")
    ]
    assert fake_prefect.artifact_updates == ["two"]
    name = f"digits-local 2x1 {RUN_ID[-8:]}"
    assert fake_prefect.updates[0] == {"name": name, "tags": ["baremetal"]}
    assert fake_prefect.updates[-1] == {"name": name, "tags": ["baremetal", "end: succeeded"]}


def test_report_and_history_are_pages_by_key(server: FakePrefect) -> None:
    """Prefect gets the run's report, the last runs of its profile, and the compared number, each under its own key."""
    server.answering.set()
    path = history_path(runs_folder(), KEY)
    for record in build_records([200.0, 201.0]):
        store_record(path, record)
    own_record = build_records([1.0])[0].model_copy(update={"key": HistoryKey(profile="x", nodes="1x1")})
    store_record(history_path(runs_folder(), own_record.key), own_record)
    trend = TrendVerdict(verdict="usual", sentence="busbw is 201")
    write_report(short_report().model_copy(update={"history": str(path), "trend": trend}))
    assert [(page["key"], page["description"]) for page in server.artifacts if "key" in page] == [
        ("report-x", "a sentence"),
        ("runs-x", "1 run: 1 succeeded"),
        (f"trend-{KEY.stem}", "busbw is 201"),
    ]
    assert "![busbw](data:image/svg+xml;base64," in server.artifacts[-1]["data"]


def test_every_page_of_the_list_has_a_sentence(fake_prefect: FakePrefect) -> None:
    """The card of each page that a run shows has a description, which is its content in one sentence."""
    profile = load_profile("digits-local")
    with PrefectControl(RUN_ID) as control:
        sink = PrefectSink(control, profile, is_flow_run=True)
        sink.take(PlanMade(profile, make_plan(profile, TRIAL_RUN)))
        sink.take(ChecksMade((Finding(where="torch", verdict="failed", what="is not installed"),)))
        sink.take(AttemptStarted(1, "digits-local-1"))
        sink.take(HangUpdate(hang=None, is_certain=True))
        sink.take(RowsRead(({"epoch": 1, "epochs": 4, "loss": 0.5},)))
        sink.show_page("metrics", "epoch 1: loss 0.5", lambda: "curves")
    assert {artifact["key"]: artifact["description"] for artifact in fake_prefect.artifacts} == {
        "plan-digits-local": "2 x 1 processes with baremetal: localhost",
        "preflight-digits-local": "0 of 1 checks; torch: is not installed",
        "hang-digits-local": "No rank hangs.",
        "progress-digits-local": "epoch 1 of 4",
        "metrics-digits-local": "epoch 1: loss 0.5",
    }


def test_curves_wait_for_a_server_that_is_away(server: FakePrefect) -> None:
    """Of the pages that were drawn while Prefect did not answer, the last one is published when it does."""
    with PrefectControl(RUN_ID) as control:
        sink = PrefectSink(control, load_profile("digits-local"), is_flow_run=True)
        for text in ("one", "two", "three"):
            sink.show_page("metrics", "", partial(str, text))
        wait_until(lambda: server.request_count)
        server.answering.set()
        wait_until(lambda: "three" in [*server.artifact_updates, *(page["data"] for page in server.artifacts)])


def test_run_without_a_history_has_its_report(server: FakePrefect) -> None:
    """If a run's numbers could not be stored, only their page is missing."""
    server.answering.set()
    write_report(short_report())
    assert [page["key"] for page in server.artifacts if "key" in page] == ["report-x"]


def test_result_is_kept_beside_the_report(server: FakePrefect) -> None:
    """Prefect gets the run's result as JSON, with the artifact type that its pages do not list."""
    server.answering.set()
    write_report(short_report())
    (artifact,) = [page for page in server.artifacts if page["type"] == "result"]
    assert (artifact["description"], artifact["flow_run_id"]) == (short_report().run, RUN_ID)
    assert RunResult.model_validate(artifact["data"]).sentence == "a sentence"


def test_repeated_end_changes_nothing(server: FakePrefect) -> None:
    """A process that only repeats the end of its run leaves the name, the tags and the pages as they are."""
    server.answering.set()
    with PrefectControl(RUN_ID) as control:
        sink = PrefectSink(control, load_profile("digits-local"), is_flow_run=True)
        sink.take(EndReached(short_report()))
    assert (server.artifacts, server.updates) == ([], [])


def test_flow_run_that_contains_runs_keeps_its_name(server: FakePrefect) -> None:
    """A training in a user's flow changes neither the name nor the tags of the flow run."""
    server.answering.set()
    write_report(short_report())
    assert server.updates == []
