"""Pages that Prefect did not take when a run ended: a sweep publishes them."""

import logging
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.builders.reports import short_report
from tests.conftest import RUN_ID
from tests.doubles.fake_prefect import FakePrefect
from torchyard.loading.profile import load_profile
from torchyard.model.event import EndReached, ReportWritten
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.tasks.flow_run.control import PrefectControl
from torchyard.tasks.flow_run.late_reports import publish_late_pages
from torchyard.tasks.flow_run.sink import PrefectSink


@pytest.fixture
def folder() -> RunFolder:
    """The folder of a run that has ended."""
    folder = RunFolder(runs_folder() / "x-1")
    folder.path.mkdir(parents=True)
    folder.record_event("end", end="succeeded", sentence="a sentence")
    return folder


def show_report(folder: RunFolder) -> None:
    with PrefectControl(RUN_ID) as control:
        sink = PrefectSink(control, load_profile("digits-local"), is_flow_run=False)
        sink.take(ReportWritten(short_report().model_copy(update={"folder": str(folder.path)})))


def list_files(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in Path(folder.path).iterdir() if "late" in path.name)


@pytest.fixture
def late(folder: RunFolder, server: FakePrefect, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run whose report Prefect has not taken, because its server is broken."""
    monkeypatch.setattr("torchyard.tasks.flow_run.sink._PAGE_TIMEOUT_S", 0.2)
    server.answering.set()
    server.status = 503
    show_report(folder)
    assert (list_files(folder), server.artifacts) == (["late-pages.json"], [])
    return folder


def test_report_of_a_killed_process_arrives_with_the_next_sweep(folder: RunFolder, server: FakePrefect) -> None:
    """Prefect gets the report and the result of a run whose process was killed while it waited for other receivers."""
    server.answering.set()
    with PrefectControl(RUN_ID) as control:
        sink = PrefectSink(control, load_profile("digits-local"), is_flow_run=False)
        sink.take(EndReached(short_report().model_copy(update={"folder": str(folder.path)})))
    publish_late_pages()
    assert [(page.get("key"), page["type"]) for page in server.artifacts] == [
        ("report-x", "markdown"),
        (None, "result"),
    ]


def test_report_arrives_once_prefect_answers(late: RunFolder, server: FakePrefect) -> None:
    """The report and the result arrive at the next sweep after Prefect is back, once, and belong to the flow run."""
    publish_late_pages()
    assert list_files(late) == ["late-pages.json"]
    server.status = 200
    publish_late_pages()
    publish_late_pages()
    assert [(page.get("key"), page["type"], page["flow_run_id"]) for page in server.artifacts] == [
        ("report-x", "markdown", RUN_ID),
        (None, "result", RUN_ID),
    ]
    assert list_files(late) == []


def test_page_whose_response_was_lost_arrives_once(late: RunFolder, server: FakePrefect) -> None:
    """A page that Prefect took without a response that arrived is not published again by the next sweep."""
    server.status = 200
    server.lost_responses = 1
    publish_late_pages()
    assert (len(server.artifacts), list_files(late)) == (1, ["late-pages.json"])
    publish_late_pages()
    assert [page.get("key") for page in server.artifacts] == ["report-x", None]
    assert list_files(late) == []


def test_broken_prefect_is_asked_once(late: RunFolder, server: FakePrefect) -> None:
    """The first page without a response ends a sweep's attempt: a server that hangs costs one timeout."""
    publish_late_pages()
    queries = [path for path in server.requested_paths if path == "/api/artifacts/filter"]
    assert (len(queries), list_files(late)) == (1, ["late-pages.json"])


def test_unreachable_prefect_keeps_the_pages(late: RunFolder) -> None:
    """A sweep without a connection to Prefect keeps the pages, and nothing is raised."""
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):
        publish_late_pages()
    assert list_files(late) == ["late-pages.json"]


def test_page_that_prefect_refuses_is_dropped(
    late: RunFolder, server: FakePrefect, caplog: pytest.LogCaptureFixture
) -> None:
    """A flow run that was deleted meanwhile has no page: the refusal is a warning, and nothing is tried again."""
    server.status = 404
    publish_late_pages()
    assert "Prefect refuses the page report-x" in caplog.text
    assert list_files(late) == []


def test_unreadable_pages_are_reported(
    folder: RunFolder, caplog: pytest.LogCaptureFixture, server: FakePrefect
) -> None:
    """A damaged file is a warning, and is removed: the report is also in the folder."""
    server.answering.set()
    (folder.path / "late-pages.json").write_text("[{")
    with caplog.at_level(logging.WARNING):
        publish_late_pages()
    assert "late-pages.json cannot be read" in caplog.text
    assert list_files(folder) == []


def test_report_that_arrives_leaves_no_file(folder: RunFolder, server: FakePrefect) -> None:
    """If Prefect takes the report in time, nothing is kept."""
    server.answering.set()
    show_report(folder)
    assert (list_files(folder), len(server.artifacts)) == ([], 2)
