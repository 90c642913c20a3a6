"""A run and its Prefect server: all calls go through a mailbox, and the run never waits for them."""

from collections.abc import Callable

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL, temporary_settings

from tests.conftest import RUN_ID
from tests.fake_prefect import FakePrefect
from tests.histories import KEY, build_records
from tests.reports import short_report
from tests.waiting import wait_until
from torchyard.loading.profile import load_profile
from torchyard.model.result import RunResult
from torchyard.model.trend import TrendVerdict
from torchyard.run.folder import runs_folder
from torchyard.run.signals import CancelRequested
from torchyard.tasks.flow_run.reporter import PrefectReporter
from torchyard.trend.records import history_path, store_record


def build_progress_call(value: float) -> Callable[[SyncPrefectClient], None]:
    """A call that sets a run's progress bar."""

    def call(client: SyncPrefectClient) -> None:
        body = ArtifactUpdate(data=value).model_dump(mode="json")
        client.request("PATCH", "/artifacts/{id}", path_params={"id": "a"}, json=body)

    return call


def test_latest_value_wins_where_prefect_hangs(server: FakePrefect) -> None:
    """Of all values sent to a hanging server, only the newest one arrives once the server responds."""
    with PrefectReporter(RUN_ID) as reporter:
        reporter.send("bar", build_progress_call(1.0))
        wait_until(lambda: server.request_count > 2)
        future = [reporter.send("bar", build_progress_call(float(number))) for number in range(2, 100)][-1]
        server.answering.set()
        future.result(30)
        assert 99.0 in server.artifact_updates
        assert len(set(server.artifact_updates)) <= 3  # a call in flight that was given up may still arrive


def test_run_is_named_and_tagged_and_its_page_written_again(fake_prefect: FakePrefect) -> None:
    """A run gets its profile's name at its start, one artifact per page, and its end as a tag."""
    with PrefectReporter(RUN_ID, profile="digits-local") as reporter:
        reporter.label_flow_run(load_profile("digits-local"))
        reporter.show_page("metrics", lambda: "one")
        wait_until(lambda: fake_prefect.artifacts)
        reporter.show_page("metrics", lambda: "two")
        wait_until(lambda: fake_prefect.artifact_updates)
        reporter.show_report(short_report())
    assert [(artifact.get("key"), artifact["data"]) for artifact in fake_prefect.artifacts][:1] == [
        ("metrics-digits-local", "one")
    ]
    assert fake_prefect.artifact_updates == ["two"]
    assert fake_prefect.updates[0] == {"name": f"digits-local 2x1 {RUN_ID[-8:]}", "tags": ["baremetal"]}
    assert {"tags": ["baremetal", "end: succeeded"]} in fake_prefect.updates


def test_unreachable_prefect_cancels_nothing(server: FakePrefect) -> None:
    """A poll without a response does not count as a cancel, and the run continues."""
    with PrefectReporter(RUN_ID) as reporter:
        wait_until(lambda: server.request_count > 2)
        reporter.check_cancelled()
        assert not reporter.is_cancelled()


def test_cancel_is_found_once_prefect_answers(server: FakePrefect) -> None:
    """A cancel during an outage of the server ends the run as soon as the server responds."""
    server.state = "CANCELLING"
    with PrefectReporter(RUN_ID) as reporter:
        wait_until(lambda: server.request_count > 2)
        reporter.check_cancelled()
        server.answering.set()
        wait_until(reporter.is_cancelled)
        with pytest.raises(CancelRequested):
            wait_until(reporter.check_cancelled)


@pytest.mark.parametrize(("status", "is_retried"), [(503, True), (500, True), (422, False), (404, False)])
def test_refused_call_is_not_repeated(server: FakePrefect, status: int, is_retried: bool) -> None:
    """A call is retried while the server is broken, and dropped if the server refuses it."""
    server.status = status
    server.answering.set()
    with PrefectReporter(RUN_ID) as reporter:
        future = reporter.send("bar", build_progress_call(1.0))
        wait_until(lambda: server.request_count > 4)
        assert future.done() is not is_retried
        server.status = 200
        wait_until(future.done)
        assert server.artifact_updates == ([1.0] if is_retried else [])


def test_report_and_history_are_pages_by_key(server: FakePrefect) -> None:
    """Prefect gets the run's report, and the history of its profile under a separate key."""
    server.answering.set()
    path = history_path(runs_folder(), KEY)
    for record in build_records([200.0, 201.0]):
        store_record(path, record)
    trend = TrendVerdict(verdict="usual", sentence="busbw is 201")
    with PrefectReporter(RUN_ID) as reporter:
        reporter.show_report(short_report().model_copy(update={"history": str(path), "trend": trend}))
    assert [(page["key"], page["description"]) for page in server.artifacts if "key" in page] == [
        ("report-x", "a sentence"),
        (f"trend-{KEY.stem}", "busbw is 201"),
    ]
    assert "![busbw](data:image/svg+xml;base64," in server.artifacts[-1]["data"]


def test_run_without_a_history_has_its_report(server: FakePrefect) -> None:
    """If a run's numbers could not be stored, only their page is missing."""
    server.answering.set()
    with PrefectReporter(RUN_ID) as reporter:
        reporter.show_report(short_report())
    assert [page["key"] for page in server.artifacts if "key" in page] == ["report-x"]


def test_result_is_kept_beside_the_report(server: FakePrefect) -> None:
    """Prefect gets the run's result as JSON, with the artifact type that its pages do not list."""
    server.answering.set()
    with PrefectReporter(RUN_ID) as reporter:
        reporter.show_report(short_report())
    (artifact,) = [page for page in server.artifacts if page["type"] == "result"]
    assert (artifact["description"], artifact["flow_run_id"]) == (short_report().run, RUN_ID)
    assert RunResult.model_validate(artifact["data"]).sentence == "a sentence"


def test_link_leads_to_the_page_of_the_run() -> None:
    """Messages and experiments contain the address of the run's page; without a UI it is empty."""
    with temporary_settings({PREFECT_UI_URL: "http://prefect:4200"}):
        assert PrefectReporter(RUN_ID).link == f"http://prefect:4200/runs/flow-run/{RUN_ID}"
    with temporary_settings({PREFECT_UI_URL: None, PREFECT_API_URL: None}):
        assert PrefectReporter(RUN_ID).link == ""
