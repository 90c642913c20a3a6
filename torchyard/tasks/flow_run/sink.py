"""The sink of a run that shows it in Prefect: its pages, its progress, its name and tags, and its report."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate
from prefect.runtime import flow_run, task_run

from torchyard.common.escaping import escape_paragraph
from torchyard.common.log import get_log
from torchyard.common.text import MAX_SENTENCE_CHARS
from torchyard.model.event import EndReached, ReportWritten, RunEvent, RunStarted
from torchyard.model.profile import Profile
from torchyard.model.run import Report
from torchyard.pages.report import render_markdown
from torchyard.run.folder import runs_folder
from torchyard.run.result import build_result
from torchyard.sinks.pages import PageSink
from torchyard.trend.page import render_history
from torchyard.trend.runs import describe_runs, read_profile_records, render_runs

from .control import PrefectControl
from .late_reports import LATE_PAGES
from .names import build_tags, format_end_tag, format_run_name
from .pages import RunPages
from .result import build_result_artifact

_PAGE_TIMEOUT_S = 10.0  # for all pages of the report; the end of the run waits no longer


class PrefectSink(PageSink):
    """Show a run in Prefect, by the requests of its control.

    Only the report waits, up to `_PAGE_TIMEOUT_S`. Its pages are kept in the run's folder, for the next sweep, from the
    run's end until Prefect has taken them; what it refuses is logged and dropped.
    """

    purpose = "show the run in Prefect"

    def __init__(self, control: PrefectControl, profile: Profile, *, is_flow_run: bool) -> None:
        """`is_flow_run`: whether the flow run is itself the run and is named after its profile.

        A user's flow that contains runs keeps its name and its tags.
        """
        super().__init__()
        self._requests = control.requests
        self._run_id = UUID(control.flow_run_id)
        self._profile = profile
        self._pages = RunPages(self._run_id, profile.name)
        self._tags = build_tags(profile, flow_run.tags) if is_flow_run else ()
        self._name = format_run_name(profile, control.flow_run_id, flow_run.name or "") if is_flow_run else ""

    def take(self, event: RunEvent) -> None:
        match event:
            case RunStarted():
                if self._name:
                    self._update_flow_run(name=self._name, tags=self._tags)
            case EndReached():  # other receivers are waited for first, and Prefect may kill this process meanwhile
                LATE_PAGES.keep(Path(event.report.folder), list(self._build_end_pages(event.report).values()))
            case ReportWritten():
                self._show_report(event.report)
            case _:
                super().take(event)

    def _update_flow_run(self, **fields: Any) -> None:
        def call(client: SyncPrefectClient) -> None:
            client.update_flow_run(self._run_id, **fields)

        self._requests.send("flow run", call)

    def show_progress(self, progress: str, percent: float) -> None:
        """Show the job's progress in Prefect. Called in the task run that waits, whose name shows it too."""
        self._pages.set_waiting_task(task_run.id, progress)
        self._requests.send("progress", lambda client: self._pages.publish_progress(client, progress, percent))

    def show_page(self, name: str, sentence: str, render: Callable[[], str]) -> None:
        """Show a page among the run's artifacts; `render` is called on the thread of the requests."""
        description = escape_paragraph(sentence, MAX_SENTENCE_CHARS)

        def call(client: SyncPrefectClient) -> None:
            self._pages.publish_page(
                client, name, ArtifactCreate(type="markdown", description=description, data=render())
            )

        self._requests.send(f"page {name}", call)

    def _show_report(self, report: Report) -> None:
        """Publish the report, the result and the history; what Prefect does not take in time is kept for a sweep."""
        deadline = time.monotonic() + _PAGE_TIMEOUT_S
        self._requests.send("wait", self._pages.rename_ended_task)
        if self._tags:
            self._update_flow_run(name=self._name, tags=(*self._tags, format_end_tag(report)))

        pages = self._build_end_pages(report)
        futures = {name: self._send_artifact(name, page) for name, page in pages.items()}
        late_pages: list[ArtifactCreate] = []
        for name, future in futures.items():
            try:
                future.result(max(deadline - time.monotonic(), 0))
            except FutureTimeoutError:
                late_pages.append(pages[name])
                self._requests.discard(_build_artifact_key(name))
            except Exception as error:
                get_log().warning("cannot publish the %s in Prefect: %s", name, error)
        if late_pages:
            self._requests.give_up()
            get_log().warning(
                "Prefect has not taken the report within %.0f s; the next sweep publishes it", _PAGE_TIMEOUT_S
            )
        LATE_PAGES.keep(Path(report.folder), late_pages)

    def _build_end_pages(self, report: Report) -> dict[str, ArtifactCreate]:
        """The pages of the run's end, by what they show."""
        sentence = escape_paragraph(report.sentence, MAX_SENTENCE_CHARS)
        pages = {
            "report": self._build_page(f"report-{report.profile}", render_markdown(report), sentence),
            "result": build_result_artifact(self._run_id, build_result(report)),
        }
        if report.history:  # the run's numbers were stored
            pages |= self._build_history_pages(report)
        return pages

    def _build_history_pages(self, report: Report) -> dict[str, ArtifactCreate]:
        """The last runs of the profile, and the number that it compares, if there is one."""
        pages: dict[str, ArtifactCreate] = {}
        records = read_profile_records(runs_folder(), report.profile)
        if records:
            runs_page = render_runs(report.profile, records)
            pages["runs"] = self._build_page(f"runs-{report.profile}", runs_page, describe_runs(records))
        trend_page = render_history(report.history)
        if trend_page:
            verdict = report.trend.sentence if report.trend else f"not compared, because the run ended {report.end}"
            description = escape_paragraph(verdict, MAX_SENTENCE_CHARS)
            pages["trend"] = self._build_page(f"trend-{Path(report.history).stem}", trend_page, description)
        return pages

    def _build_page(self, key: str, text: str, description: str) -> ArtifactCreate:
        return ArtifactCreate(key=key, type="markdown", description=description, data=text, flow_run_id=self._run_id)

    def _send_artifact(self, name: str, artifact: ArtifactCreate) -> Future[None]:
        def call(client: SyncPrefectClient) -> None:
            client.create_artifact(artifact)

        return self._requests.send(_build_artifact_key(name), call)


def _build_artifact_key(name: str) -> str:
    return f"artifact {name}"
