"""What a run reports to Prefect and asks of it, on a thread of its own: a server that hangs delays no step.

The report page is written by torchyard/pages/report.py and sent from here.
"""

import asyncio
import contextlib
import contextvars
import math
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run, task_run
from prefect.states import Crashed, Running
from prefect.utilities.urls import url_for

from torchyard.common.escaping import escape_paragraph
from torchyard.common.log import get_log
from torchyard.model.profile import Profile
from torchyard.model.run import Report
from torchyard.pages.report import MAX_SENTENCE_CHARS, render_markdown
from torchyard.run.signals import CancelRequested
from torchyard.trend.page import render_history

from . import states
from .names import list_tags, name_run, tag_end
from .pages import RunPages
from .result import build_result, make_result_artifact

_POLL_INTERVAL_S = 3.0  # between two checks of the run's state in Prefect
_RETRY_INTERVAL_S = 1.0
_PAGE_TIMEOUT_S = 10.0  # how long Prefect may take for the report; the end of the run waits no longer
_SIGNAL_TIMEOUT_S = 3.0  # how long the signal of a cancel may take; a dead worker sends none
_NO_SUSPENSION = "a run cannot be suspended, as its job would train on: cancel it, and retry it later"
PrefectCall = Callable[[SyncPrefectClient], None]


class PrefectReporter:
    """A mailbox for Prefect, in which the latest call of a key wins, and a regular check of the run's state.

    What happens to a call, by Prefect's answer:
        done        it leaves the mailbox
        no answer   it stays, and is tried again every second
        refused     it is dropped, and its future holds the error

    Example: `reporter.send("page", lambda client: client.create_artifact(page)).result(10)`
    """

    stops: tuple[type[BaseException], ...] = (TerminationSignal,)
    watchdog: tuple[str, ...] = (sys.executable, "-m", f"{__package__.rpartition('.')[0]}.recovery")

    def __init__(self, run_id: str, count: int = 1, profile: str = "") -> None:
        self._run_id, self.count = UUID(run_id), count
        self.link = url_for("flow-run", obj_id=run_id) or ""
        self._pages, self._tags = RunPages(self._run_id, profile), tuple[str, ...]()
        self.report: Report | None = None
        self.stop: BaseException | None = None
        self._calls: dict[str, tuple[PrefectCall, Future[None]]] = {}
        self._news = threading.Condition()
        self._over = threading.Event()
        self._cancelled_at = math.inf
        self._looked_at = -math.inf
        self._around: tuple[UUID, ...] | None = None  # the flow runs around this one, once Prefect has said them
        self._pool_ended, self._is_abandoned = _find_pool_event(), False

    def __enter__(self) -> Self:
        run = contextvars.copy_context().run  # Prefect's settings and the run's log belong to a context
        self._thread = threading.Thread(target=run, args=(self._run,), daemon=True, name="reporter")
        self._thread.start()
        self._lost_steps = self.send("lost", _end_lost_steps(str(self._run_id), self.count))
        _ignore_suspension()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with self._news:
            self._news.notify()
        self._thread.join(states.CALL_TIMEOUT_S)  # a state that it is about to set must not overwrite the final one

    def send(self, key: str, call: PrefectCall) -> Future[None]:
        """Queue a call to Prefect; it replaces an earlier call of this key that is not done yet."""
        done: Future[None] = Future()
        with self._news:
            self._calls[key] = call, done
            self._news.notify()
        return done

    def check_cancelled(self) -> None:
        """Raise CancelRequested if the run was cancelled a moment ago and no signal has arrived."""
        if self._is_abandoned or time.monotonic() - self._cancelled_at > _SIGNAL_TIMEOUT_S:
            raise CancelRequested("a flow run was cancelled or stopped, and no signal has arrived here")

    def is_cancelled(self) -> bool:
        """Whether the run was cancelled, as far as Prefect answers within a few seconds."""
        with contextlib.suppress(Exception):
            self.send("look", self._look).result(_SIGNAL_TIMEOUT_S)
        return self._cancelled_at < math.inf

    def is_handed_on(self) -> bool:
        return states.is_handed_on()

    def is_void(self, stop: BaseException) -> bool:
        """Whether Prefect's client has given up renewing the run's slot: it cancels a flow for no other reason."""
        self.stop = stop
        context = FlowRunContext.get()
        limited = context is not None and context.flow is not None and context.flow.timeout_seconds is not None
        if not isinstance(stop, asyncio.CancelledError) or limited:
            return False
        get_log().warning(
            "Prefect has taken the run's concurrency slot away, as it could not be renewed; the job goes on"
        )
        return True

    def was_asked_again(self) -> bool:
        return states.has_person_request(str(self._run_id))

    def show_progress(self, done: str, percent: float) -> None:
        """Show in Prefect how much is done."""
        self._pages.remember_wait(task_run.id, done)
        self.send("progress", lambda client: self._pages.show_progress(client, done, percent))

    def show_page(self, name: str, render: Callable[[], str]) -> None:
        """Show a page among the run's artifacts; it is rendered on the reporter's thread."""

        def call(client: SyncPrefectClient) -> None:
            self._pages.show(client, name, ArtifactCreate(type="markdown", data=render()))

        self.send(f"page {name}", call)

    def label_flow_run(self, profile: Profile) -> None:
        """Name the flow run after its profile, unless a user has named it, and tag it with where it runs.

        Only for a flow run that is the run: a user's flow keeps its name.
        """
        name, self._tags = name_run(profile, str(self._run_id), flow_run.name or ""), list_tags(profile, flow_run.tags)
        self.send("name", lambda client: _update_flow_run(client, self._run_id, name=name, tags=self._tags))

    def show_report(self, report: Report) -> None:
        """Show the report and the history in Prefect; an unreachable server costs the pages, not the report."""
        self.report, until = report, time.monotonic() + _PAGE_TIMEOUT_S
        self.send("wait", self._pages.name_wait)
        if self._tags:
            tags = (*self._tags, tag_end(report))
            self.send("tags", lambda client: _update_flow_run(client, self._run_id, tags=tags))
        said = escape_paragraph(report.sentence, MAX_SENTENCE_CHARS)
        pages = {"report": self._send_page(f"report-{report.profile}", render_markdown(report), said)}
        pages["result"] = self._send_artifact("result", make_result_artifact(self._run_id, build_result(report)))
        if history := render_history(report.history):
            told = escape_paragraph(report.trend.sentence, MAX_SENTENCE_CHARS) if report.trend else ""
            pages["history"] = self._send_page(f"trend-{Path(report.history).stem}", history, told)
        for name, sent in pages.items():
            try:
                sent.result(max(until - time.monotonic(), 0))
            except NotYetError:
                get_log().warning("the %s is not in Prefect: no answer for %.0f s", name, _PAGE_TIMEOUT_S)
            except Exception as error:
                get_log().warning("the %s is not in Prefect: %s", name, error)

    def _send_page(self, key: str, text: str, about: str) -> Future[None]:
        fields = {"key": key, "type": "markdown", "description": about}
        return self._send_artifact(key, ArtifactCreate(data=text, flow_run_id=self._run_id, **fields))

    def _send_artifact(self, key: str, page: ArtifactCreate) -> Future[None]:
        def call(client: SyncPrefectClient) -> None:
            client.create_artifact(page)

        return self.send(key, call)

    def flush(self) -> None:
        until = time.monotonic() + _PAGE_TIMEOUT_S
        for sent in [self._lost_steps, *(done for _, done in list(self._calls.values()))]:
            with contextlib.suppress(Exception):  # Prefect is unreachable or slow
                sent.result(max(until - time.monotonic(), 0))

    # --- on the reporter's own thread

    def _run(self) -> None:
        """Serve the mailbox until the run is over, whatever happens to Prefect."""
        while not self._over.is_set():
            try:
                with states.open_bounded_client() as client:
                    self._serve(client)
            except Exception as error:
                get_log().debug("no connection to Prefect: %s", error)
                self._over.wait(_RETRY_INTERVAL_S)

    def _serve(self, client: SyncPrefectClient) -> None:
        while not self._over.is_set():
            if time.monotonic() - self._looked_at > _POLL_INTERVAL_S:
                self.send("look", self._look)
            for key, (call, done) in list(self._calls.items()):
                if self._over.is_set():
                    return
                self._make(client, key, call, done)
            with self._news:
                undone = bool(self._calls)
                self._news.wait(_RETRY_INTERVAL_S if undone else _POLL_INTERVAL_S)

    def _make(self, client: SyncPrefectClient, key: str, call: PrefectCall, done: Future[None]) -> None:
        """Make one call; it stays in the mailbox if Prefect is unreachable."""
        refusal = None
        try:
            call(client)
        except Exception as error:
            if states.is_transient_error(error):
                return
            refusal = error
            get_log().debug("Prefect refuses %s: %s", key, error)
        with self._news:
            if self._calls.get(key) == (call, done):
                del self._calls[key]
        done.set_exception(refusal) if refusal else done.set_result(None)

    def _look(self, client: SyncPrefectClient) -> None:
        """Check whether a user has cancelled or suspended the run, or cancelled one around it."""
        self._looked_at = time.monotonic()
        this = client.read_flow_run(self._run_id)
        if self._around is None:
            self._around = states.list_flow_runs_around(client, this)
        state = this.state
        if any(map(states.is_cancelled, (state, *(client.read_flow_run(each).state for each in self._around)))):
            self._cancelled_at = min(self._cancelled_at, self._looked_at)
        elif self._pool_ended.is_set() and state and state.is_running():  # not so if the flow returns
            self._is_abandoned = True
        elif state and state.is_paused():
            get_log().warning("%s; its state is Running again", _NO_SUSPENSION)
            client.set_flow_run_state(self._run_id, Running(message=_NO_SUSPENSION), force=True)


def _update_flow_run(client: SyncPrefectClient, run_id: UUID, **fields: Any) -> None:
    client.update_flow_run(run_id, **fields)


def _find_pool_event() -> threading.Event:
    """What Prefect sets if the flow around a submitted task ends or is stopped: a signal reaches only its main thread.

    It has no public name; without it only a cancel ends such a run.
    """
    flow, step = FlowRunContext.get(), TaskRunContext.get()
    events = getattr(getattr(flow, "task_runner", None), "_cancel_events", {})
    return (events.get(step.task_run.id) if step else None) or threading.Event()


def _ignore_suspension() -> None:
    """Keep Prefect's engine from leaving a suspended run, and its job, at the next step.

    The engine marks a request in the run's context, and every task that starts obeys it.
    """
    request = getattr(FlowRunContext.get(), "flow_run_suspension_request", None)
    if request is not None:
        request.mark_requested = lambda state: None


def _end_lost_steps(run_id: str, count: int) -> PrefectCall:
    """Set the task runs of this run's earlier processes to Crashed; they would stay Running for ever."""

    def call(client: SyncPrefectClient) -> None:
        kinds = TaskRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING])
        living = TaskRunFilter(state=TaskRunFilterState(type=kinds))
        this = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(run_id)]))
        for lost in client.read_task_runs(flow_run_filter=this, task_run_filter=living):
            if lost.flow_run_run_count < count:
                client.set_task_run_state(lost.id, Crashed(message="its process was lost"), force=True)

    return call
